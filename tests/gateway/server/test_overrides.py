"""Names of Daphne, Twisted and autobahn that this package overrides or reads. A release may rename them silently."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import gateway.server
from gateway.server import GatewayServer
from gateway.server.channel import GatewayChannel, GatewayHTTPFactory
from gateway.server.http import GatewayRequest
from gateway.server.transport import GatewayPort, GatewayTransport
from gateway.server.websocket import GatewayWebSocket, GatewayWebSocketFactory

# Methods that a library calls by name, and attributes that it sets and this package reads or sets.
NAMES: dict[type, str] = {
    GatewayServer: "__init__ run stop protocol_connected protocol_disconnected create_application "
    "kill_all_applications endpoints ws_factory http_factory",
    GatewayRequest: "__init__ gotLength parseCookies handleContentChunk requestReceived connectionLost "
    "handle_exception requestHeaders client host finished channel transport _disconnected application_queue",
    GatewayChannel: "__init__ connectionMade allHeadersReceived rawDataReceived allContentReceived "
    "lineLengthExceeded pauseProducing resumeProducing requestDone connectionLost _respondToBadRequestAndDisconnect "
    "loseConnection registerProducer setRawMode setTimeout line_mode requests length persistent "
    "totalHeadersSize MAX_LENGTH maxHeaders abortTimeout requestFactory _command _path _version "
    "_receivedHeaderSize _receivedHeaderCount _handlingRequest _waitingForTransport _networkProducer",
    GatewayHTTPFactory: "__init__ buildProtocol protocol timeOut server",
    GatewayTransport: "__init__ write writeSequence writeSomeData loseConnection abortConnection connectionLost "
    "loseWriteConnection _maybePauseProducer startWriting registerProducer unregisterProducer resumeProducing "
    "dataBuffer offset connected disconnecting server socket protocol _tempDataBuffer _tempDataLen "
    "_writeDisconnected",
    GatewayPort: "transport startListening stopListening getHost _fromListeningDescriptor",
    GatewayWebSocket: "__init__ onConnect onOpen failHandshake onOpenHandshakeTimeout dataReceived consumeData "
    "onMessageEnd onMessage onCloseFrame onClose _sendAutoPing onAutoPingTimeout handle_exception "
    "_fail_connection _dataReceived sendCloseFrame dropConnection state data failedByMe message_data "
    "message_is_binary remoteCloseCode remoteCloseReason localCloseCode wasNotCleanReason autoPingTimeout "
    "autoPingTimeoutCall openHandshakeTimeoutCall maxMessagePayloadSize STATE_CONNECTING STATE_OPEN STATE_CLOSING "
    "CLOSE_STATUS_CODES_ALLOWED",
    GatewayWebSocketFactory: "__init__ server_class setProtocolOptions _batched_timer",
}


def foreign_source(ours: type) -> str:
    bases = [base for base in ours.__mro__ if not base.__module__.startswith(("gateway.", "builtins", "zope."))]
    return "\n".join(inspect.getsource(base) for base in bases)


@pytest.mark.parametrize("ours", NAMES, ids=lambda ours: ours.__name__)
def test_the_names_of_other_libraries_that_are_relied_on_still_exist(ours: type) -> None:
    source = foreign_source(ours)
    defined = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    defined |= {name for base in ours.__mro__ if not base.__module__.startswith("gateway.") for name in vars(base)}
    missing = [name for name in NAMES[ours].split() if name not in defined]
    assert not missing, f"{ours.__mro__[1].__qualname__} no longer has {missing}; {ours.__name__} relies on them."


@pytest.mark.parametrize("ours", NAMES, ids=lambda ours: ours.__name__)
def test_every_method_that_overrides_one_is_in_the_list(ours: type) -> None:
    inherited = {name for base in ours.__mro__[1:-1] for name in vars(base)}
    overrides = {name for name, value in vars(ours).items() if inspect.isfunction(value) and name in inherited}
    assert overrides <= set(NAMES[ours].split())


def test_the_server_knows_nothing_of_the_application_it_serves() -> None:
    for path in Path(gateway.server.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("gateway.") or name.startswith("gateway.server"), f"{path.name}: {name}"
                assert name.partition(".")[0] not in {"django", "channels", "accounts", "dashboard"}, path.name
