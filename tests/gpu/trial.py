"""A trial that uses the GPU in a given way: trial.py WAY SECONDS. Requires PyTorch."""

import os
import subprocess
import sys
import time

import torch

#: The clock cycles for which one thread of one multiprocessor waits: 2 to 4 seconds.
CYCLES = 5_000_000_000


def multiply(seconds: float) -> int:
    """Keeps the GPU busy with products of matrices, and returns their number."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return steps(seconds, lambda: matrix @ matrix)


def small(seconds: float) -> int:
    """Starts many small kernels, so that the processor sets the pace, and returns their number."""
    vector = torch.randn(1024, device="cuda")
    return steps(seconds, lambda: [vector.mul_(1.0) for _ in range(100)])


def steps(seconds: float, step) -> int:
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        step()
        torch.cuda.synchronize()
        count += 1
    return count


def idle(seconds: float) -> int:
    """Computes for two seconds and then waits with the memory of the GPU in use."""
    kept = torch.ones(1024, device="cuda")
    count = multiply(2)
    time.sleep(seconds)
    return count + int(kept.sum() < 0)


def hang(seconds: float) -> int:
    """Occupies the GPU with a kernel that waits, as a collective operation does after the loss of a rank."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.cuda._sleep(CYCLES)
        torch.cuda.synchronize()
    return 0


def exhaust(_seconds: float) -> int:
    """Asks for more memory than any GPU has."""
    return len(torch.empty(1 << 43, dtype=torch.uint8, device="cuda"))


def leave(seconds: float) -> int:
    """Leaves a process behind that keeps 4 GiB of the GPU's memory, in a session of its own."""
    keeper = "import sys, time, torch; kept = torch.ones(1 << 30, device='cuda'); print('kept', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", keeper], stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
    return 0


def misuse(_seconds: float) -> int:
    """Reads beyond the end of a tensor on the GPU."""
    index = torch.tensor([1 << 40], device="cuda")
    torch.ones(4, device="cuda")[index].sum().item()
    return 0


WAYS = {way.__name__: way for way in (multiply, small, idle, hang, exhaust, leave, misuse)}

if __name__ == "__main__":
    way, seconds = sys.argv[1:3]
    began = time.time()
    count = WAYS[way](float(seconds))
    # One line for each trial, for checks that compare trials.
    print(f"gpus={os.environ.get('CUDA_VISIBLE_DEVICES', 'all')!r} from {began} to {time.time()}", flush=True)
    print(f"steps={count}", flush=True)
