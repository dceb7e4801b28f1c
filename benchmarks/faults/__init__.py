"""What must hold under faults, measured over many trials: each module is a command that exits with 1 if it does not.

``python -m benchmarks.faults.kill --trials 200``, and so on: kill, stop, cut, collectives, busy, store, cancel, order,
cycles, interrupt,
giving_up.
"""
