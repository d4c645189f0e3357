"""The lengths of the attempts of a search that restarts again and again."""


def restart_length(attempt: int) -> int:
    """The Luby series 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..., the best there is for attempts of unknown
    luck (Luby, Sinclair, Zuckerman 1993).

    >>> [restart_length(attempt) for attempt in range(15)]
    [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
    """
    position = attempt + 1
    while position & (position + 1):
        position -= (1 << (position.bit_length() - 1)) - 1
    return (position + 1) // 2
