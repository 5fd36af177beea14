"""`python -m glimpse` is the command `glimpse`."""

from glimpse.server.cli.main import main

if __name__ == "__main__":
    main()
