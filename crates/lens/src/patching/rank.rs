//! Whether two grids put the same places first.

use super::grid::PatchingGrid;

/// Differences of less than this share of what lies between the two prompts count as none: further down, rounding decides.
const RESOLUTION: f64 = 1e-3;

impl PatchingGrid {
    /// Spearman's rank correlation with another grid over the same cells: 1 where both order them alike. Cells that differ by less than a
    /// thousandth of what lies between the clean and the corrupted prompt count as equal. None where the grids do not fit, or where all
    /// cells of one of them are equal.
    pub fn rank_agreement(&self, other: &PatchingGrid) -> Option<f64> {
        if self.rows != other.rows || self.columns != other.columns {
            return None;
        }
        let rounded = |grid: &PatchingGrid| -> Option<Vec<f64>> {
            let values = grid.normalised.as_ref()?.iter().flatten();
            Some(values.map(|value| (f64::from(*value) / RESOLUTION).round()).collect())
        };
        correlation(&ranks(&rounded(self)?), &ranks(&rounded(other)?))
    }
}

/// Places in ascending order; equal values share the mean of their places.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let first = order.iter().position(|one| *one == equal[0]).unwrap_or(0);
        let shared = first as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|one| ranks[*one] = shared);
    }
    ranks
}

fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let dot = |x: &[f64], mean_x: f64, y: &[f64], mean_y: f64| {
        x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>()
    };
    let spread = (dot(a, mean_a, a, mean_a) * dot(b, mean_b, b, mean_b)).sqrt();
    (spread > 0.0).then(|| dot(a, mean_a, b, mean_b) / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_shared_by_equals() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 0.5]), [2.5, 1.0, 2.5, 0.0]);
        let spearman = |a: &[f64], b: &[f64]| correlation(&ranks(a), &ranks(b));
        assert_eq!(spearman(&[1.0, 2.0, 30.0], &[0.1, 0.5, 0.6]), Some(1.0));
        assert_eq!(spearman(&[1.0, 2.0, 30.0], &[3.0, 2.0, 1.0]), Some(-1.0));
        assert_eq!(spearman(&[1.0, 1.0], &[3.0, 2.0]), None);
        // scipy.stats.spearmanr([1, 2, 3, 4, 5], [5, 6, 7, 8, 7])
        let known = spearman(&[1.0, 2.0, 3.0, 4.0, 5.0], &[5.0, 6.0, 7.0, 8.0, 7.0]).unwrap();
        assert!((known - 0.820_782_681_668_123_3).abs() < 1e-12);
    }
}
