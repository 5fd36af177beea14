"""`python -m glimpse.gateway` is the command `glimpse gateway`."""

from glimpse.gateway.cli.main import main

if __name__ == "__main__":
    main()
