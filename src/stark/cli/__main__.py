"""Makes ``python -m stark.cli`` the same as ``stark``."""

from stark.cli.main import main

if __name__ == "__main__":
    main()
