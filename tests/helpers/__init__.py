"""What several tests share: readers, doubles, jobs, recordings."""
