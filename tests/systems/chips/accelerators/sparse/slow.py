"""The grid once more, in the most obvious way: bits as booleans, outputs one by one, elements cycle by cycle."""

from __future__ import annotations

import numpy as np

MODES = ("dc", "in", "out", "in+out", "in+out+wr")


def stream_cycles(operands: list[bool], lanes: int, skips: bool) -> int:
    """Cycles of one output, of the operands in their order."""
    spent = 0
    for begin in range(0, len(operands), 32):
        chunk = operands[begin : begin + 32]
        spent += -(-(sum(chunk) if skips else len(chunk)) // lanes)
    return spent


def stream_cycles_of_bits(bits: list[bool], lanes: int) -> int:
    """The same where all that is not set is no operand, as a pixel outside of the image."""
    return sum(-(-sum(bits[begin : begin + 32]) // lanes) for begin in range(0, len(bits), 32))


def patches(bits, shape, phase):
    """Operands of every output [row][group], as booleans: bits are [images, operand channels, height, width]."""
    images, channels = bits.shape[:2]
    each = channels // shape.groups
    down, across = (shape.height, shape.width) if phase == "backward" else shape.output
    found = []
    for image in range(images):
        for y in range(down):
            for x in range(across):
                row = []
                for group in range(shape.groups):
                    operands = []
                    for tap_y in range(shape.kernel[0]):
                        for tap_x in range(shape.kernel[1]):
                            at = reached(shape, phase, y, x, tap_y, tap_x, bits.shape[2:])
                            if at is not None:
                                operands += bits[image, group * each : (group + 1) * each, at[0], at[1]].tolist()
                    row.append(operands)
                found.append(row)
    return found


def reached(shape, phase, y, x, tap_y, tap_x, sides):
    at = []
    for place, tap, side in ((y, tap_y, 0), (x, tap_x, 1)):
        step, pad, far = shape.stride[side], shape.padding[side], shape.dilation[side]
        if phase == "backward":
            over = place + pad - tap * far
            if over % step:
                return None
            one = over // step
        else:
            one = place * step - pad + tap * far
        if not 0 <= one < sides[side]:
            return None
        at.append(one)
    return at


def grid_cycles(dense, sparse, groups, wanted, grid):
    """Cycles of each mode, summed over tiles, and the work of the last two: dense and sparse are [rows][group]."""
    rows, columns = len(dense), len(groups)
    deep = min(grid.pixels_per_element, -(-rows // grid.rows))
    wide = min(grid.channels_per_element, -(-columns // grid.cols))
    found, work = dict.fromkeys(MODES, 0), 0
    for top in range(0, rows, deep * grid.rows):
        for left in range(0, columns, wide * grid.cols):
            of_mode = {mode: [] for mode in MODES}
            for element in range(grid.rows * grid.cols):
                down, across = divmod(element, grid.cols)
                items = [
                    (row, column)
                    for row in range(top + down * deep, min(top + (down + 1) * deep, rows))
                    for column in range(left + across * wide, min(left + (across + 1) * wide, columns))
                ]
                opened = [item for item in items if wanted is None or wanted[item]]
                of_mode["dc"].append([dense[r][groups[c]] for r, c in items])
                of_mode["in"].append([sparse[r][groups[c]] for r, c in items])
                of_mode["out"].append([dense[r][groups[c]] for r, c in opened])
                of_mode["in+out"].append([sparse[r][groups[c]] for r, c in opened])
            for mode in MODES[:-1]:
                found[mode] += max(sum(one) for one in of_mode[mode])
            found["in+out+wr"] += shared([[c for c in one if c] for one in of_mode["in+out"]], grid)
            work += sum(map(sum, of_mode["in+out"]))
    return found, work


def shared(queues, grid):
    """Cycles until all elements of all groups of neighbors are idle, stepped one by one."""
    latest = 0
    for begin in range(0, len(queues), grid.steal_group):
        latest = max(latest, neighbors([list(one) for one in queues[begin : begin + grid.steal_group]], grid))
    return latest


def neighbors(queues, grid):
    now = 0
    # per element: (when its current output ends, outputs that are not begun)
    busy_until = [0] * len(queues)
    is_over = False
    ready = [0] * len(queues)  # when what was taken over may begin
    while True:
        for element, queue in enumerate(queues):
            if queue and busy_until[element] <= now and ready[element] <= now:
                busy_until[element] = now + queue.pop(0)
        ends = [max(busy, at if queue else 0) + sum(queue)
                for busy, at, queue in zip(busy_until, ready, queues, strict=True)]  # fmt: skip
        if max(ends) <= now:
            return now if any(ends) else 0
        for element in range(len(queues)):
            if is_over or ends[element] > now:
                continue
            busiest = ends.index(max(ends))
            left = queues[busiest]
            taken = (len(left) + 1) // 2
            if ends[busiest] - now <= 2 * grid.steal_cycles or not taken:
                is_over = True
                continue
            stolen = left[len(left) - taken :]
            begin = now + grid.steal_cycles + stolen[0]
            if begin + sum(stolen) > ends[busiest]:
                is_over = True
                continue
            queues[busiest] = left[: len(left) - taken]
            queues[element], ready[element] = stolen, begin
            ends[busiest] -= sum(stolen)
            ends[element] = begin + sum(stolen)
        now += 1


def random_bits(rng, shape, density, blocks=1):
    """Bits with zeros in blocks, as activations have them."""
    small = [-(-side // blocks) for side in shape[-2:]]
    coarse = rng.random((*shape[:-2], *small)) < density
    return np.repeat(np.repeat(coarse, blocks, -2), blocks, -1)[..., : shape[-2], : shape[-1]]
