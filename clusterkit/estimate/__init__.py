"""What a model needs and how fast it trains: memory, communication, step time, and a strategy.

Pure: nothing here runs a command or asks a GPU, and torch is imported by nobody. The facts and the
formulas with their sources: docs/estimate.md.
"""
