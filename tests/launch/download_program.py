"""`clef-serve download` as a program of its own, for tests: `python -m tests.launch.download_program --model ...`."""

import argparse
import sys

from launch.checkpoint_source import add_download_arguments, download_command
from launch.up import say

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_download_arguments(parser)
    sys.exit(download_command(parser.parse_args(), say))
