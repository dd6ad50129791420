//! Sizes that no machine has are refused before anything is asked for.

use super::error::CliError;

/// Refuses what needs more memory than the machine has. `size` is a product of sizes in bytes.
pub(super) fn check_fits(what: &str, size: &[usize]) -> Result<(), CliError> {
    let bytes = size.iter().fold(1u128, |product, factor| product.saturating_mul(*factor as u128));
    match bytes <= installed() {
        true => Ok(()),
        false => Err(CliError::bad_input(format!(
            "{what} would take {:.0} GiB of memory, and this machine has {:.0}",
            bytes as f64 / (1u64 << 30) as f64,
            installed() as f64 / (1u64 << 30) as f64
        ))),
    }
}

/// The bytes of memory the machine has; a tebibyte where it does not say.
fn installed() -> u128 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = told.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u128>().ok());
    kilobytes.map_or(1 << 40, |kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_sizes_are_told_and_others_are_not() {
        assert!(check_fits("a list", &[1000, 1000, 4]).is_ok());
        for size in [&[usize::MAX, 4][..], &[1 << 40, 1 << 20]] {
            let error = check_fits("a list", size).err().map(|error| error.to_string());
            assert!(error.is_some_and(|text| text.starts_with("a list would take")));
        }
    }
}
