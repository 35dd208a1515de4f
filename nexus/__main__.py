"""`python -m nexus`: the same as the command `nexus`."""

from nexus.cli import main

if __name__ == "__main__":
    main()
