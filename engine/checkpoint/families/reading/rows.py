"""How many rows the embeddings of a medium may have."""


def only_grid(num_rows: int, expected: int) -> tuple[int, int]:
    """Returns the grid of an image that always has `expected` rows. Raises ValueError if it has others."""
    if num_rows != expected:
        raise ValueError(f"expected the {expected} tokens of an image")
    return (1, 1)


def whole(num_rows: int, rows_of_each: int, what: str) -> int:
    """Returns of how many parts a medium consists, each of which has as many rows. Raises ValueError if there are more.

    Args:
        num_rows: of the medium.
        rows_of_each: of each part.
        what: such a part.
    """
    if num_rows % rows_of_each:
        raise ValueError(f"expected {rows_of_each} tokens for each {what}")
    return num_rows // rows_of_each
