"""What the docs print runs as printed."""

import pytest

from benchmarks import docs_run

PAGE = """
```console
$ windtunnel explain train.wt   # a comment
$ pip install something
made it up: output
```

<!-- not run: it needs a GPU -->

```sh
windtunnel predict train.wt \\
  --on h100
```
"""


def test_commands_of_a_page_are_found_with_the_reasons_of_those_that_are_not_run():
    assert [
        ("windtunnel explain train.wt", ""),
        ("windtunnel predict train.wt --on h100", "it needs a GPU"),
    ] == list(docs_run.commands(PAGE))


def test_hints_with_words_of_the_reader_are_not_taken_for_commands():
    assert docs_run.PLACEHOLDER.search("windtunnel verify SCRIPT.py --whatif NAME adds one")
    assert not docs_run.PLACEHOLDER.search("windtunnel whatif train.wt --all")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tutorial.md", "README.md"])
def test_the_first_pages_run_as_printed(name):
    pytest.importorskip("torch")
    (page,) = docs_run.run([path for path in docs_run.pages() if path.name == name])

    assert [] == page.failures
    assert page.num_commands > 3
