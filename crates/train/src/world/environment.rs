//! What launchers tell the processes that they start.

use super::WorldError;

/// Who launches, and the variable in which it says how many processes it has started together.
const LAUNCHERS: [(&str, &str); 4] = [
    ("Open MPI", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_SIZE"),
    ("SLURM", "SLURM_STEP_NUM_TASKS"),
];

/// In the environment of processes that a launcher starts together, and that have nothing to do with each other.
const ALONE: &str = "TENTERHOOK_ALONE";

/// Whether this process is to work by itself, whoever was started with it.
pub(super) fn is_to_be_alone() -> bool {
    here(ALONE).is_some_and(|value| value == "1")
}

/// As how many processes this one was started, and by whom, where that is more than one.
fn started_as(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, usize)> {
    let several = |(launcher, name): &(&'static str, &str)| {
        let size = variable(name)?.trim().parse().ok().filter(|size| *size > 1)?;
        Some((*launcher, size))
    };
    LAUNCHERS.iter().find_map(several)
}

fn here(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Without MPI a process must have been started alone.
#[cfg(not(feature = "mpi"))]
pub(super) fn check_no_others() -> Result<(), WorldError> {
    match started_as(here) {
        None => Ok(()),
        Some((launcher, size)) => Err(WorldError::Unreachable(format!(
            "{launcher} has started {size} processes together, and this build knows nothing of the others: each would do the same by itself. Build it with --features mpi, or set {ALONE}=1 where each has work of its own"
        ))),
    }
}

/// With MPI there must be as many as were started.
#[cfg(feature = "mpi")]
pub(super) fn check_size(size: usize) -> Result<(), WorldError> {
    match started_as(here) {
        Some((launcher, started)) if started != size => Err(WorldError::Unreachable(format!(
            "{launcher} has started {started} processes together, and MPI knows of {size}: the program is built with another MPI than it is started with, or `srun` needs --mpi=pmix"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p26_processes_that_were_started_together_are_known() {
        let with = |name: &'static str, value: &'static str| {
            started_as(move |asked| (asked == name).then(|| value.to_string()))
        };
        assert_eq!(with("OMPI_COMM_WORLD_SIZE", "4"), Some(("Open MPI", 4)));
        assert_eq!(with("SLURM_STEP_NUM_TASKS", "2"), Some(("SLURM", 2)));
        for (name, value) in [("OMPI_COMM_WORLD_SIZE", "1"), ("PMI_SIZE", "many"), ("HOME", "3")] {
            assert_eq!(with(name, value), None);
        }
    }
}
