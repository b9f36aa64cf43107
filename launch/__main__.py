"""`python -m launch` is `clef-serve`."""

from launch.cli import main

main()
