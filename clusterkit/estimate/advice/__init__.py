"""Which strategy to take, what would make others fit, and how it is launched."""
