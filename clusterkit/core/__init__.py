"""What every other part stands on."""
