RECORDS: int

def clipped_sums(
    network: tuple[int, int, int, int],
    records: tuple[int, int, int, int],
    lanes: tuple[int, int, int, int, int],
    clips_and_totals: tuple[int, int],
) -> None: ...
