//! One metric over time, in a bounded number of buckets.

/// Consecutive points of a metric, taken together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Of the finite values.
    sum: f64,
    min: f64,
    max: f64,
    finite: u32,
    /// Of the last point.
    pub(crate) step: u64,
    pub(crate) time: f64,
}

impl Bucket {
    fn of(step: u64, time: f64, value: f64) -> Self {
        match value.is_finite() {
            true => Self { sum: value, min: value, max: value, finite: 1, step, time },
            false => Self { sum: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY, finite: 0, step, time },
        }
    }

    fn join(&mut self, later: &Self) {
        self.sum += later.sum;
        self.min = self.min.min(later.min);
        self.max = self.max.max(later.max);
        self.finite += later.finite;
        (self.step, self.time) = (later.step, later.time);
    }

    /// The mean of the finite values; NaN where there are none.
    pub(crate) fn mean(&self) -> f64 {
        if self.finite == 0 { f64::NAN } else { self.sum / f64::from(self.finite) }
    }
}

/// A metric over time. Every bucket but the last has `width` points, a power of two: where there are too many buckets,
/// neighbours are joined.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    buckets: Vec<Bucket>,
    /// Points in the last bucket.
    in_last: u64,
    pub(crate) width: u64,
    pub(crate) count: u64,
    capacity: usize,
    pub(crate) last: f64,
}

impl Series {
    /// With room for so many buckets, at least two.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            buckets: Vec::new(),
            in_last: 0,
            width: 1,
            count: 0,
            capacity: capacity.max(2) & !1,
            last: f64::NAN,
        }
    }

    /// Adds a point; true when buckets had to be joined.
    pub(crate) fn push(&mut self, step: u64, time: f64, value: f64) -> bool {
        self.count += 1;
        self.last = value;
        let point = Bucket::of(step, time, value);
        if let Some(last) = self.buckets.last_mut().filter(|_| self.in_last < self.width) {
            last.join(&point);
            self.in_last += 1;
            return false;
        }
        let full = self.buckets.len() == self.capacity;
        if full {
            self.join_neighbours();
        }
        self.buckets.push(point);
        self.in_last = 1;
        full
    }

    /// Changes how many buckets there may be; true when buckets had to be joined.
    pub(crate) fn set_capacity(&mut self, capacity: usize) -> bool {
        self.capacity = capacity.max(2) & !1;
        let before = self.width;
        while self.buckets.len() > self.capacity {
            self.join_neighbours();
        }
        self.width != before
    }

    fn join_neighbours(&mut self) {
        // A last bucket without a partner stays as it is, now half full.
        if self.buckets.len() % 2 == 0 {
            self.in_last += self.width;
        }
        let joined = self.buckets.len().div_ceil(2);
        for i in 0..joined {
            let mut bucket = self.buckets[2 * i];
            if let Some(next) = self.buckets.get(2 * i + 1) {
                bucket.join(next);
            }
            self.buckets[i] = bucket;
        }
        self.buckets.truncate(joined);
        self.width *= 2;
    }

    pub(crate) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The buckets that end in a range of steps, in at most so many.
    pub(crate) fn part(&self, from: u64, to: u64, most: usize) -> Self {
        let begin = self.buckets.partition_point(|bucket| bucket.step < from);
        let end = self.buckets.partition_point(|bucket| bucket.step <= to).max(begin);
        let mut part = Self { buckets: self.buckets[begin..end].to_vec(), ..Self::new(self.capacity) };
        (part.width, part.count, part.last) = (self.width, self.count, self.last);
        part.set_capacity(most);
        part
    }

    /// As the API gives it.
    pub(crate) fn columns(&self) -> Columns {
        let of = |value: fn(&Bucket) -> f64| self.buckets.iter().map(value).collect::<Vec<f64>>();
        let joined = self.width > 1;
        Columns {
            step: self.buckets.iter().map(|bucket| bucket.step).collect(),
            value: of(Bucket::mean),
            min: joined.then(|| of(|bucket| bucket.min)),
            max: joined.then(|| of(|bucket| bucket.max)),
            time: of(|bucket| bucket.time),
            count: self.count,
            width: self.width,
        }
    }
}

/// A series as the API gives it. What is not finite becomes `null`.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Columns {
    pub(crate) step: Vec<u64>,
    pub(crate) value: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<Vec<f64>>,
    pub(crate) time: Vec<f64>,
    pub(crate) count: u64,
    pub(crate) width: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_their_points_say() {
        for (points, capacity) in [(0, 8), (1, 8), (8, 8), (9, 8), (1000, 8), (1000, 7), (4097, 64)] {
            let value = |i: u64| ((i * 7919) % 101) as f64 - 50.0;
            let mut series = Series::new(capacity);
            for i in 0..points {
                series.push(10 * i, i as f64, value(i));
            }
            let columns = series.columns();
            assert!(columns.step.len() <= capacity, "{points} {capacity}");
            let width = columns.width as usize;
            let all: Vec<u64> = (0..points).collect();
            let chunks: Vec<&[u64]> = all.chunks(width).collect();
            assert_eq!(chunks.len(), columns.step.len(), "{points} {capacity}");
            for (i, chunk) in chunks.iter().enumerate() {
                let values: Vec<f64> = chunk.iter().map(|i| value(*i)).collect();
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                assert!((columns.value[i] - mean).abs() < 1e-9);
                assert_eq!(columns.step[i], 10 * chunk[chunk.len() - 1]);
                if width > 1 {
                    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                    assert_eq!(columns.min.as_ref().unwrap()[i], least);
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_left_out_of_means() {
        let mut series = Series::new(2);
        for value in [1.0, f64::NAN, f64::INFINITY, f64::NAN, 3.0] {
            series.push(1, 0.0, value);
        }
        let columns = series.columns();
        assert_eq!(columns.width, 4);
        assert_eq!(serde_json::to_value(&columns.value).unwrap(), serde_json::json!([1.0, 3.0]));
        let mut series = Series::new(2);
        series.push(1, 0.0, f64::NAN);
        assert_eq!(serde_json::to_value(series.columns().value).unwrap(), serde_json::json!([null]));
    }

    #[test]
    fn a_part_ends_where_it_should() {
        let mut series = Series::new(100);
        for i in 0..100 {
            series.push(i, 0.0, i as f64);
        }
        let part = series.part(10, 19, 4).columns();
        assert_eq!((part.step, part.width), (vec![13, 17, 19], 4));
        assert!(series.part(200, 10, 4).columns().step.is_empty());
    }
}
