"""Lets ``python -m stark.cli`` stand for ``stark``."""

from stark.cli.main import main

if __name__ == "__main__":
    main()
