"""The load harness: how fast a SystemOne server answers, and the highest rate at which it keeps a promise.

`python -m benchmarks.load --help`. Knows HTTP and the published request, nothing of engines: it measures any server that
answers `/v1/systemone`.
"""
