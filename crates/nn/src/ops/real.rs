//! The two number types the CPU kernels run on: f32 for work, f64 for gradient checks.

use candle_core::WithDType;
use num_traits::Float;

use super::product::{MatMut, Product, fast_f32, fast_f32_sums_of};

/// Partial sums are kept in this many lanes: enough for the widest vector registers, and a fixed
/// number, so that the order of summation never depends on the machine.
pub(crate) const LANES: usize = 16;

/// f32 or f64.
pub(crate) trait Real: WithDType + Float + std::iter::Sum + Default + 'static {
    /// `e^x`; the f32 one is a polynomial that the compiler can vectorise (relative error below 2e-7 from -87
    /// to 88; below it is 0, above it no longer grows until it is infinite).
    fn fast_exp(self) -> Self;
    /// The error function, vectorisable in f32 (absolute error below 5e-7).
    fn fast_erf(self) -> Self;
    /// The hyperbolic tangent, vectorisable in f32 (relative error below 4e-7).
    fn fast_tanh(self) -> Self;
    /// A constant.
    fn of(x: f64) -> Self;
    /// Computes the product on kernels of our own, where there are some for this type and CPU.
    fn fast_product(_product: &Product<Self>, _dst: &MatMut<Self>) -> bool {
        false
    }
    /// How many terms of a sum these kernels add up at a time.
    fn sums_of() -> Option<usize> {
        None
    }
}

impl Real for f32 {
    #[inline(always)]
    fn fast_exp(self) -> Self {
        // e^x = 2^k * e^f with k = round(x / ln 2), |f| <= ln(2) / 2. ln 2 is split in two so that f is
        // exact. Below -87.3 the result would be subnormal: it becomes 0, as softmax wants of -inf.
        // NaN must stay NaN: f carries it, as `max`/`min` would not.
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        let clamped = if self > 88.0 { 88.0 } else { self };
        let clamped = if clamped < -87.3 { -87.3 } else { clamped };
        // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits: unlike `round` and `as i32`, that
        // needs no instruction which vector units lack.
        const ROUND: f32 = 12_582_912.0;
        let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
        let k = rounded - ROUND;
        let f = (clamped - k * LN2_HIGH) - k * LN2_LOW;
        let p = 1.987_569_1e-4;
        let p = p * f + 1.398_2e-3;
        let p = p * f + 8.333_452e-3;
        let p = p * f + 4.166_579_6e-2;
        let p = p * f + 0.166_666_65;
        let p = p * f + 0.5;
        let p = p * f * f + f + 1.0;
        let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
        let value = p * scale;
        let value = if self < -87.3 { 0.0 } else { value };
        if self > 88.8 { f32::INFINITY } else { value }
    }

    #[inline(always)]
    fn fast_erf(self) -> Self {
        // A ratio of two polynomials in x^2 on [-4, 4], outside which erf is +-1 in f32.
        let x = if self > 4.0 { 4.0 } else { self };
        let x = if x < -4.0 { -4.0 } else { x };
        let s = x * x;
        let p = -2.726_142e-10;
        let p = p * s + 2.770_681_4e-8;
        let p = p * s - 2.101_024e-6;
        let p = p * s - 5.692_506_5e-5;
        let p = p * s - 7.349_906_3e-4;
        let p = p * s - 2.954_6e-3;
        let p = p * s - 1.609_603_3e-2;
        let q = -1.456_607_2e-5;
        let q = q * s - 2.133_740_6e-4;
        let q = q * s - 1.682_827e-3;
        let q = q * s - 7.373_329e-3;
        let q = q * s - 1.426_473_9e-2;
        // Exactly +-1 at the ends, or GELU of a large negative number would not vanish.
        let inside = x * p / q;
        let value = if self >= 4.0 { 1.0 } else { inside };
        if self <= -4.0 { -1.0 } else { value }
    }

    #[inline(always)]
    fn fast_tanh(self) -> Self {
        // Near 0 a polynomial, because the quotient loses digits there.
        let s = self * self;
        let p = 2.147_539_8e-3;
        let p = p * s - 8.182_677e-3;
        let p = p * s + 2.170_297e-2;
        let p = p * s - 5.394_720_3e-2;
        let p = p * s + 0.133_332_1;
        let p = p * s - 0.333_333_3;
        let near = self + self * s * p;
        let far = 1.0 - 2.0 / ((2.0 * self.abs()).fast_exp() + 1.0);
        let far = far.copysign(self);
        if self.abs() < 0.625 { near } else { far }
    }

    #[inline(always)]
    fn of(x: f64) -> Self {
        x as f32
    }

    fn fast_product(product: &Product<Self>, dst: &MatMut<Self>) -> bool {
        fast_f32(product, dst)
    }

    fn sums_of() -> Option<usize> {
        fast_f32_sums_of()
    }
}

impl Real for f64 {
    #[inline(always)]
    fn fast_exp(self) -> Self {
        self.exp()
    }

    #[inline(always)]
    fn fast_erf(self) -> Self {
        libm::erf(self)
    }

    #[inline(always)]
    fn fast_tanh(self) -> Self {
        self.tanh()
    }

    #[inline(always)]
    fn of(x: f64) -> Self {
        x
    }
}

/// Adds up `f` of every index in a fixed order: element `i` goes to lane `i % LANES`, the lanes are added
/// pairwise. Trailing zeros therefore change nothing, which lets a short row and a padded row agree bit for bit.
#[inline(always)]
pub(crate) fn lane_sum<T: Real>(len: usize, f: impl Fn(usize) -> T) -> T {
    let mut lanes = [T::zero(); LANES];
    let whole = len / LANES * LANES;
    let mut i = 0;
    while i < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f(i + lane);
        }
        i += LANES;
    }
    for (lane, i) in (whole..len).enumerate() {
        lanes[lane] += f(i);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_functions_are_close_to_the_exact_ones() {
        for i in -100_000..=100_000 {
            let x = i as f32 * 9e-4;
            let exact = f64::from(x).exp();
            if x < 88.0 && x > -87.0 {
                assert!((f64::from(x.fast_exp()) / exact - 1.0).abs() < 2e-7, "exp {x}");
            }
            assert!((f64::from(x.fast_erf()) - libm::erf(f64::from(x))).abs() < 5e-7, "erf {x}");
            let exact = f64::from(x).tanh();
            assert!((f64::from(x.fast_tanh()) - exact).abs() <= 4e-7 * exact.abs(), "tanh {x}");
        }
    }

    #[test]
    fn fast_exp_at_the_edges() {
        assert_eq!(0f32.fast_exp(), 1.0);
        assert_eq!(f32::NEG_INFINITY.fast_exp(), 0.0);
        assert_eq!(f32::INFINITY.fast_exp(), f32::INFINITY);
        assert!(f32::NAN.fast_exp().is_nan());
        assert!(f32::NAN.fast_erf().is_nan());
        assert!(f32::NAN.fast_tanh().is_nan());
        assert_eq!(f32::NEG_INFINITY.fast_tanh(), -1.0);
    }

    #[test]
    fn trailing_zeros_do_not_change_a_sum() {
        let mut values: Vec<f32> = (0..37).map(|i| (i as f32 * 0.37).sin()).collect();
        let short = lane_sum(values.len(), |i| values[i]);
        values.resize(64, 0.0);
        assert_eq!(short.to_bits(), lane_sum(values.len(), |i| values[i]).to_bits());
    }
}
