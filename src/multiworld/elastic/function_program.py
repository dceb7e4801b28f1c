"""The program of a worker that calls a function: ``python -m multiworld.elastic.function_program CALL FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from multiworld.elastic.launch.function_call import forget_result, keep_result, load_call


def main(call_file: str, results: str) -> None:
    """Call the function, and keep what it returns. What it raises goes into the error file, and ends the process."""
    local_rank = int(os.environ["LOCAL_RANK"])
    forget_result(Path(results), local_rank)
    function, arguments = load_call(Path(call_file).read_bytes())
    result = record(function)(*arguments)
    keep_result(Path(results), local_rank, os.environ["RANK"], result)


if __name__ == "__main__":
    call_file, results = sys.argv[1:]
    sys.argv[:] = sys.argv[:1]
    main(call_file, results)
