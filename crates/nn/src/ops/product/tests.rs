//! Every kernel against sums in double precision, and the promises about bits.

use super::*;
use tenterhook_hooks::random::Stream;

const SHAPES: [[usize; 3]; 15] = [
    [1, 1, 1],
    [1, 40, 70],
    [2, 800, 33],
    [3, 17, 2100],
    [4, 1600, 16],
    [5, 7, 9],
    [14, 768, 32],
    [15, 769, 33],
    [29, 100, 300],
    [64, 64, 64],
    [131, 1537, 65],
    [600, 30, 257],
    [26, 400, 8195],
    [295, 800, 200],
    [600, 1, 257],
];

fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let stream = Stream::new(seed);
    (0..len as u64).map(|i| stream.normal(i) as f32).collect()
}

/// The ways in which a matrix can lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lies {
    ByRows,
    ByColumns,
    Scattered,
}

const WAYS: [Lies; 3] = [Lies::ByRows, Lies::ByColumns, Lies::Scattered];

/// A copy of a row-major matrix that lies in this way.
fn laid(values: &[f32], cols: usize, lies: Lies) -> (Vec<f32>, usize, usize) {
    let rows = values.len() / cols;
    let (row_stride, col_stride) = match lies {
        Lies::ByRows => (cols + 3, 1),
        Lies::ByColumns => (1, rows + 5),
        Lies::Scattered => (2 * cols + 1, 2),
    };
    let mut data = vec![f32::NAN; (rows - 1) * row_stride + (cols - 1) * col_stride + 1];
    for (i, value) in values.iter().enumerate() {
        data[i / cols * row_stride + i % cols * col_stride] = *value;
    }
    (data, row_stride, col_stride)
}

struct Case {
    size: [usize; 3],
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Case {
    fn new(size: [usize; 3]) -> Self {
        let [m, k, n] = size;
        Self { size, a: numbers(1, m * k), b: numbers(2, k * n) }
    }

    /// The product with both operands laid out in these ways, after `change`, on `there`.
    fn compute(
        &self,
        ways: [Lies; 2],
        change: impl for<'a> Fn(Product<'a, f32>) -> Product<'a, f32>,
        kernel: Kernel,
        there: f32,
    ) -> Vec<f32> {
        let [m, k, n] = self.size;
        let (a, a_row, a_col) = laid(&self.a, k, ways[0]);
        let (b, b_row, b_col) = laid(&self.b, n, ways[1]);
        let mut y = vec![there; m * n];
        let product =
            change(Product::of(Mat::strided(&a, m, k, a_row, a_col), Mat::strided(&b, k, n, b_row, b_col)));
        kernel(&product, &MatMut::new(&mut y, m, n));
        y
    }

    /// The product in double precision, and the sum of the sizes of what was added, which errors are measured by.
    fn exact(&self) -> Vec<(f64, f64)> {
        let [m, k, n] = self.size;
        let element = |i: usize| {
            let (r, c) = (i / n, i % n);
            let terms = (0..k).map(|p| f64::from(self.a[r * k + p]) * f64::from(self.b[p * n + c]));
            terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
        };
        (0..m * n).map(element).collect()
    }
}

fn fast(product: &Product<f32>, dst: &MatMut<f32>) {
    if !fast_f32(product, dst) {
        through_gemm::run(product, dst);
    }
}

type Kernel = fn(&Product<f32>, &MatMut<f32>);

/// The kernels of our own that this CPU can run.
fn own() -> Vec<Kernel> {
    #[cfg(target_arch = "x86_64")]
    return kernels::all();
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

/// Every way to compute a product.
fn all() -> Vec<Kernel> {
    own().into_iter().chain([through_gemm::run::<f32> as Kernel]).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All kernels are right at this size, however the operands lie.
fn check_right(size: [usize; 3]) {
    let case = Case::new(size);
    let exact = case.exact();
    for kernel in all() {
        for a in WAYS {
            for b in WAYS {
                let y = case.compute([a, b], |product| product, kernel, f32::NAN);
                for (y, (exact, size_of_terms)) in y.iter().zip(&exact) {
                    assert!(
                        (f64::from(*y) - exact).abs() <= 2e-6 * size_of_terms,
                        "{size:?} {a:?} {b:?}: {y} for {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn all_kernels_are_right_in_all_layouts() {
    SHAPES.into_iter().for_each(check_right);
}

/// Blocks of rows are packed while others are used: whole and partial vectors, blocks and panels, in all combinations.
#[test]
fn what_is_left_over_is_right_too() {
    for rows in [281, 294, 295, 308] {
        for depth in [1, 2, 15, 16, 17, 40, 384, 385, 400] {
            for cols in [1, 31, 64, 161] {
                check_right([rows, depth, cols]);
            }
        }
    }
}

#[test]
fn starts_scales_and_finishes() {
    for size in SHAPES {
        let case = Case::new(size);
        let row = numbers(3, size[2]);
        let exact = case.exact();
        let finish = |_: usize, first: usize, part: &mut [f32]| {
            part.iter_mut().zip(first..).for_each(|(y, column)| *y = -*y + column as f32);
        };
        for (kernel, lies) in all().into_iter().flat_map(|kernel| WAYS.map(|lies| (kernel, lies))) {
            let ways = [Lies::ByRows, lies];
            let added = case.compute(ways, |p| Product { start: Start::There, ..p.scaled(0.5) }, kernel, 3.0);
            // Not through `compute`, whose closure is generic over the product's life and so cannot borrow.
            let (b, b_row, b_col) = laid(&case.b, size[2], lies);
            let b = Mat::strided(&b, size[1], size[2], b_row, b_col);
            let mut finished = vec![f32::NAN; size[0] * size[2]];
            kernel(
                &Product::of(Mat::new(&case.a, size[0], size[1]), b).plus_row(Some(&row)).then(Some(&finish)),
                &MatMut::new(&mut finished, size[0], size[2]),
            );
            for (i, (exact, terms)) in exact.iter().enumerate() {
                let column = i % size[2];
                let error = 2e-6 * (terms + 3.0) + 1e-6 * column as f64;
                assert!((f64::from(added[i]) - (3.0 + 0.5 * exact)).abs() <= error, "{size:?}");
                let wanted = column as f64 - (exact + f64::from(row[column]));
                assert!((f64::from(finished[i]) - wanted).abs() <= error, "{size:?} {i}");
            }
        }
    }
}

#[test]
fn an_empty_sum_is_what_it_starts_with() {
    for rows in [1, 20] {
        let mut y = vec![f32::NAN; rows * 3];
        let (a, b) = (Mat::new(&[], rows, 0), Mat::new(&[], 0, 3));
        Product::of(a, b).plus_row(Some(&[1.0f32, 2.0, 3.0])).write(MatMut::new(&mut y, rows, 3));
        assert!(y.chunks(3).all(|row| row == [1.0, 2.0, 3.0]));
    }
}

#[test]
fn threads_do_not_change_bits() {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    for size in [[3, 900, 3000], [200, 900, 700], [1500, 300, 90]] {
        let case = Case::new(size);
        let ways = [Lies::ByRows, Lies::ByColumns];
        let one = case.compute(ways, |p| p.on(Threads::One), fast, 0.0);
        for threads in [1, 2, 3, 7] {
            let many = pool(threads).install(|| case.compute(ways, |p| p, fast, 0.0));
            assert_eq!(bits(&one), bits(&many), "{size:?} on {threads} threads");
        }
    }
}

/// What only our own kernels promise: a token alone, in a batch, before padding and on another CPU is the same token.
#[test]
fn only_the_length_of_a_sum_decides_its_bits() {
    let [m, k, n] = [40, 1000, 100];
    let case = Case::new([m, k, n]);
    let wide = Case::new([40, 500, 8200]);
    let tall = Case::new([600, 500, 90]);
    let plain = |case: &Case| own().first().map(|best| case.compute([Lies::ByRows; 2], |p| p, *best, 0.0));
    let (Some(whole), Some(by_rows), Some(many_rows)) = (plain(&case), plain(&wide), plain(&tall)) else {
        return;
    };
    for kernel in own() {
        for ways in WAYS.into_iter().flat_map(|a| WAYS.map(|b| [a, b])) {
            assert_eq!(bits(&whole), bits(&case.compute(ways, |p| p, kernel, 0.0)), "{ways:?}");
            assert_eq!(bits(&many_rows), bits(&tall.compute(ways, |p| p, kernel, 0.0)), "{ways:?}");
        }
        let by_columns = wide.compute([Lies::ByRows, Lies::ByColumns], |p| p, kernel, 0.0);
        assert_eq!(bits(&by_rows), bits(&by_columns), "turned");
        for rows in [1, 2, 3, 4, 5, 13, 15] {
            let few = Case { size: [rows, k, n], a: case.a[..rows * k].to_vec(), b: case.b.clone() };
            for b in WAYS {
                let some = few.compute([Lies::ByRows, b], |p| p, kernel, 0.0);
                assert_eq!(bits(&whole[..rows * n]), bits(&some), "{rows} rows, {b:?}");
            }
        }
        // Zeros at the end, whatever they are multiplied with.
        let longer = 1700;
        let mut padded = vec![0.0; m * longer];
        for (padded, a) in padded.chunks_mut(longer).zip(case.a.chunks(k)) {
            padded[..k].copy_from_slice(a);
        }
        let mut b = case.b.clone();
        b.extend(numbers(9, (longer - k) * n));
        let padded = Case { size: [m, longer, n], a: padded, b };
        assert_eq!(bits(&whole), bits(&padded.compute([Lies::ByRows; 2], |p| p, kernel, 0.0)));
    }
}
