"""File formats of data sets, each with its writer and its reader, in the layouts of DLIO."""

from windtunnel.systems.dataio.formats.format import FileLayout, Format, SampleFile
from windtunnel.systems.dataio.formats.known import make_format

__all__ = ["FileLayout", "Format", "SampleFile", "make_format"]
