"""The page of a memory profile: what it says, that it is whole, and that names stay names."""

from hypothesis import given
from hypothesis import strategies as st

from windtunnel.reports.memory_profile import memory_page
from windtunnel.reports.treemap import squarify
from windtunnel.sources.memory.profile import MemoryProfile

MIB = 2**20
EVENTS = [
    (0, "birth", 0, "weight", MIB, 0, "before", "head.weight", "head", ""),
    (1000, "birth", 1, "temporary", 4 * MIB, 0, "forward", "aten::<script>", "body</svg>", "train.py:7"),
    (1500, "category", 1, "feature map", 4 * MIB, 0, "forward", "aten::<script>", "body</svg>", "train.py:7"),
    (2000, "birth", 2, "gradient", MIB, 0, "backward", "head.weight.grad", "head", "train.py:8"),
    (3000, "death", 1, "feature map", 0, 0, "forward", "aten::<script>", "body</svg>", "train.py:7"),
]


def test_the_page_says_what_the_peak_is_made_of(tmp_path):
    page = memory_page(MemoryProfile.of(EVENTS), tmp_path / "job.memory.html").read_text()

    assert "<h1>job: 6.00 MiB at the peak</h1>" in page
    assert "Feature map is 67 % of the 6.00 MiB at the peak" in page
    assert "The largest part of the peak is the feature map of body&lt;/svg&gt;: 4.00 MiB" in page
    assert "1 of 3 storages hold half of the peak" in page
    assert "train.py:7 holds most at the peak: 4.00 MiB" in page


def test_names_stay_names_and_nothing_is_fetched(tmp_path):
    page = memory_page(MemoryProfile.of(EVENTS, {"is_fake": True}), tmp_path / "page.html", title="<b>").read_text()

    assert "<script>" not in page
    assert "aten::&lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_a_profile_of_nothing_is_a_page_too(tmp_path):
    assert "0 B at the peak" in memory_page(MemoryProfile.of([]), tmp_path / "empty.html").read_text()


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_a_tree_map_fills_its_box_in_proportion(sizes):
    sizes = sorted(sizes, reverse=True)
    boxes = squarify(sizes, (0.0, 0.0, 300.0, 100.0))

    for size, (x, y, width, height) in zip(sizes, boxes, strict=True):
        assert abs(width * height - 30000 * size / sum(sizes)) < 1e-6 * 30000
        assert -1e-6 <= x
        assert x + width <= 300 + 1e-6
        assert -1e-6 <= y
        assert y + height <= 100 + 1e-6
