from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from gateway.server.frames import BINARY, TEXT, frame_header


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65535, 65536, 70000])
@pytest.mark.parametrize(("opcode", "expected"), [(TEXT, Opcode.TEXT), (BINARY, Opcode.BINARY)])
def test_a_header_and_its_payload_are_the_frame_another_implementation_writes(
    length: int, opcode: int, expected: Opcode
) -> None:
    payload = b"p" * length
    data = frame_header(opcode, length) + payload
    assert data == Frame(expected, payload).serialize(mask=False)
    reader = StreamReader()
    reader.feed_data(data)
    parser = Frame.parse(reader.read_exact, mask=False)
    with pytest.raises(StopIteration) as parsed:
        next(parser)
    assert parsed.value.value.data == payload
