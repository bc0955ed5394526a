"""Run the command line with `python -m clusterkit`."""

from clusterkit.cli import main

if __name__ == "__main__":
    main()
