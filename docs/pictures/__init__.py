"""Pictures of the terminal, as SVG: drawn from what commands print, so that they cannot lie.

`make pictures` draws them anew; a test compares what the commands print now with what is drawn.
"""
