//! A matrix that is the product of two thin ones, as circuits of heads are.

use candle_core::Tensor;
use nalgebra::{DMatrix, SVD};
use serde::Serialize;

use super::matrix;
use crate::error::LensError;

/// `left [rows, rank] * right [rank, columns]`. Whatever is asked of the product is computed from its thin factors.
#[derive(Clone, Debug)]
pub struct LowRank {
    left: DMatrix<f64>,
    right: DMatrix<f64>,
}

/// A singular value decomposition: `sum over i of singular_values[i] * left[i] right[i]^T`.
#[derive(Clone, Debug, Serialize)]
pub struct Svd {
    /// Largest first.
    pub singular_values: Vec<f64>,
    /// Unit vectors on the side of the rows. The largest entry of each is positive; its partner on the right has the sign that goes with it.
    pub left: Vec<Vec<f64>>,
    /// Unit vectors on the side of the columns.
    pub right: Vec<Vec<f64>>,
}

impl LowRank {
    /// The product of `[rows, rank]` and `[rank, columns]`.
    pub fn new(left: &Tensor, right: &Tensor) -> Result<Self, LensError> {
        let (left, right) = (matrix(left)?, matrix(right)?);
        if left.ncols() != right.nrows() {
            return Err(LensError::BadInput(format!(
                "a matrix of {} columns cannot be multiplied with one of {} rows",
                left.ncols(),
                right.nrows()
            )));
        }
        Ok(Self { left, right })
    }

    /// The transposed product.
    pub fn transposed(&self) -> Self {
        Self { left: self.right.transpose(), right: self.left.transpose() }
    }

    /// The eigenvalues that can differ from zero, of a square product, as pairs of real and imaginary part; largest in size first.
    pub fn eigenvalues(&self) -> Vec<(f64, f64)> {
        let small = &self.right * &self.left;
        let mut found: Vec<(f64, f64)> =
            small.complex_eigenvalues().iter().map(|value| (value.re, value.im)).collect();
        found.sort_by(|a, b| b.0.hypot(b.1).total_cmp(&a.0.hypot(a.1)).then(b.1.total_cmp(&a.1)));
        found
    }

    /// The singular value decomposition.
    pub fn svd(&self) -> Svd {
        let (left, right) = (self.left.clone().qr(), self.right.transpose().qr());
        let svd = SVD::new(left.r() * right.r().transpose(), true, true);
        let (Some(u), Some(v)) = (&svd.u, &svd.v_t) else {
            // Both were asked for.
            return Svd { singular_values: Vec::new(), left: Vec::new(), right: Vec::new() };
        };
        let (u, v) = (left.q() * u, right.q() * v.transpose());
        let vectors = |i: usize| {
            let column = |matrix: &DMatrix<f64>| matrix.column(i).iter().copied().collect::<Vec<f64>>();
            let (mut left, mut right) = (column(&u), column(&v));
            let largest =
                left.iter().copied().fold(0.0, |most: f64, x| if x.abs() > most.abs() { x } else { most });
            if largest < 0.0 {
                left.iter_mut().chain(&mut right).for_each(|x| *x = -*x);
            }
            (left, right)
        };
        let (left, right) = (0..svd.singular_values.len()).map(vectors).unzip();
        Svd { singular_values: svd.singular_values.iter().copied().collect(), left, right }
    }

    /// A thin matrix `[rank, columns]` with the same products with whatever stands to the right, up to a rotation.
    pub(super) fn collapsed_left(&self) -> DMatrix<f64> {
        self.left.clone().qr().r() * &self.right
    }

    /// A thin matrix `[rows, rank]` with the same products with whatever stands to the left, up to a rotation.
    pub(super) fn collapsed_right(&self) -> DMatrix<f64> {
        &self.left * self.right.transpose().qr().r().transpose()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn product() -> (LowRank, DMatrix<f64>) {
        let value = |i: usize| ((i * i * 7 + 3 * i) % 11) as f32 - 4.5;
        let tensor = |rows: usize, columns: usize| {
            let values: Vec<f32> = (0..rows * columns).map(|i| value(i + rows)).collect();
            Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
        };
        let low = LowRank::new(&tensor(6, 2), &tensor(2, 6)).unwrap();
        let full = &low.left * &low.right;
        (low, full)
    }

    #[test]
    fn thin_factors_say_what_the_whole_matrix_says() {
        let (low, full) = product();
        let svd = low.svd();
        let whole = full.clone().svd(false, false).singular_values;
        assert!(svd.singular_values.iter().zip(whole.iter()).all(|(a, b)| (a - b).abs() < 1e-9));
        let mut again = DMatrix::zeros(6, 6);
        for i in 0..2 {
            for (r, left) in svd.left[i].iter().enumerate() {
                for (c, right) in svd.right[i].iter().enumerate() {
                    again[(r, c)] += svd.singular_values[i] * left * right;
                }
            }
        }
        assert!((again - &full).norm() < 1e-9);
        let trace: f64 = low.eigenvalues().iter().map(|(re, _)| re).sum();
        assert!((trace - full.trace()).abs() < 1e-9);
        let turned = low.transposed().svd();
        assert!(turned.singular_values.iter().zip(whole.iter()).all(|(a, b)| (a - b).abs() < 1e-9));
    }

    #[test]
    fn products_survive_the_collapse() {
        let (low, full) = product();
        let other = DMatrix::from_fn(6, 3, |r, c| (r * 3 + c) as f64 - 7.0);
        assert!(((low.collapsed_left() * &other).norm() - (&full * &other).norm()).abs() < 1e-9);
        let left = (other.transpose() * low.collapsed_right()).norm();
        assert!((left - (other.transpose() * &full).norm()).abs() < 1e-9);
    }

    #[test]
    fn factors_that_do_not_fit_are_refused() {
        let x = Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert!(LowRank::new(&x, &x).unwrap_err().to_string().contains("3 columns"));
    }
}
