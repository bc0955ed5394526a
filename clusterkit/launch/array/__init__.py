"""One job description, many jobs: its parameters and their combinations."""
