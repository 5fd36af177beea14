"""`python -m glimpse.gateway` is the command `glimpse gateway`."""

from glimpse.gateway.cli import main

if __name__ == "__main__":
    main()
