//! The speed of matrix products at the sizes transformers have: `cargo bench --workspace --bench products [-- MxKxN ...]`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use tenterhook_nn::ops::product_seconds;

fn main() {
    let given: Vec<[usize; 3]> = std::env::args().skip(1).filter_map(|arg| parse(&arg)).collect();
    let usual = [
        [1, 768, 3072],
        [1, 768, 50257],
        [32, 768, 3072],
        [128, 768, 768],
        [128, 768, 3072],
        [128, 3072, 768],
        [128, 768, 50257],
        [1024, 768, 3072],
        [1024, 3072, 768],
        [1024, 768, 50257],
        [2048, 384, 384],
        [2048, 384, 1536],
        [2048, 1536, 384],
        [384, 2048, 1536],
        [2048, 50257, 384],
        [50257, 2048, 384],
        [2048, 2048, 2048],
    ];
    println!("GFLOP/s, median and best; AB, A by columns, B by columns");
    for size in if given.is_empty() { usual.to_vec() } else { given } {
        let [m, k, n] = size;
        let flops = 2.0 * (m * k * n) as f64;
        print!("{:>18}", format!("{m}x{k}x{n}"));
        for (a, b) in [(false, false), (true, false), (false, true)] {
            let repeat = ((8e9 / flops) as usize).clamp(7, 51);
            let mut seconds = product_seconds(size, a, b, repeat);
            seconds.sort_by(f64::total_cmp);
            print!("   {:6.1} {:6.1}", flops / seconds[repeat / 2] / 1e9, flops / seconds[0] / 1e9);
        }
        println!();
    }
}

fn parse(arg: &str) -> Option<[usize; 3]> {
    let sizes: Vec<usize> = arg.split('x').map(str::parse).collect::<Result<_, _>>().ok()?;
    sizes.try_into().ok()
}
