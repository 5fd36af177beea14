"""`python -m glimpse.gateway`."""

from glimpse.gateway.cli import main

if __name__ == "__main__":
    main()
