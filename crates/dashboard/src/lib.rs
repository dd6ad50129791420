//! The dashboard: what runs leave on the disk, in a browser. It reads files and nothing else, so it cannot disturb a run.
