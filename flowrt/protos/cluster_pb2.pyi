from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Envelope(_message.Message):
    __slots__ = ("request_id", "is_answer", "status", "tensors", "settled", "also", "hello", "heartbeat", "get_status", "task_status", "read_clock", "clock_reading", "get_progress", "progress", "get_metrics", "metrics", "create_worker_session", "delete_worker_session", "register_graph", "graph_handle", "deregister_graph", "run_graph", "step_result", "cleanup_graph", "recv_tensor", "reset_containers", "drain", "describe_graphs", "graph_descriptions", "forget_partial_runs", "take_turn", "end_turn", "profile_steps", "step_profiles", "create_session", "session_handle", "close_session", "make_callable", "callable_handle", "release_callable", "run_step", "cancel_step", "list_devices", "device_list", "done", "reset", "extend_session", "graph_version", "partial_run_setup", "partial_run_handle", "partial_run")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GET_STATUS_FIELD_NUMBER: _ClassVar[int]
    TASK_STATUS_FIELD_NUMBER: _ClassVar[int]
    READ_CLOCK_FIELD_NUMBER: _ClassVar[int]
    CLOCK_READING_FIELD_NUMBER: _ClassVar[int]
    GET_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    GET_METRICS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CREATE_WORKER_SESSION_FIELD_NUMBER: _ClassVar[int]
    DELETE_WORKER_SESSION_FIELD_NUMBER: _ClassVar[int]
    REGISTER_GRAPH_FIELD_NUMBER: _ClassVar[int]
    GRAPH_HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEREGISTER_GRAPH_FIELD_NUMBER: _ClassVar[int]
    RUN_GRAPH_FIELD_NUMBER: _ClassVar[int]
    STEP_RESULT_FIELD_NUMBER: _ClassVar[int]
    CLEANUP_GRAPH_FIELD_NUMBER: _ClassVar[int]
    RECV_TENSOR_FIELD_NUMBER: _ClassVar[int]
    RESET_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_GRAPHS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_DESCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    FORGET_PARTIAL_RUNS_FIELD_NUMBER: _ClassVar[int]
    TAKE_TURN_FIELD_NUMBER: _ClassVar[int]
    END_TURN_FIELD_NUMBER: _ClassVar[int]
    PROFILE_STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_PROFILES_FIELD_NUMBER: _ClassVar[int]
    CREATE_SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_HANDLE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_SESSION_FIELD_NUMBER: _ClassVar[int]
    MAKE_CALLABLE_FIELD_NUMBER: _ClassVar[int]
    CALLABLE_HANDLE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_CALLABLE_FIELD_NUMBER: _ClassVar[int]
    RUN_STEP_FIELD_NUMBER: _ClassVar[int]
    CANCEL_STEP_FIELD_NUMBER: _ClassVar[int]
    LIST_DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_LIST_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    EXTEND_SESSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RUN_SETUP_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RUN_HANDLE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RUN_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    is_answer: bool
    status: Status
    tensors: _containers.RepeatedCompositeFieldContainer[TensorMeta]
    settled: _containers.RepeatedScalarFieldContainer[int]
    also: _containers.RepeatedScalarFieldContainer[int]
    hello: Hello
    heartbeat: Heartbeat
    get_status: GetStatus
    task_status: TaskStatus
    read_clock: ReadClock
    clock_reading: ClockReading
    get_progress: GetProgress
    progress: Progress
    get_metrics: GetMetrics
    metrics: Metrics
    create_worker_session: CreateWorkerSession
    delete_worker_session: DeleteWorkerSession
    register_graph: RegisterGraph
    graph_handle: GraphHandle
    deregister_graph: DeregisterGraph
    run_graph: RunGraph
    step_result: StepResult
    cleanup_graph: CleanupGraph
    recv_tensor: RecvTensor
    reset_containers: ResetContainers
    drain: Drain
    describe_graphs: DescribeGraphs
    graph_descriptions: GraphDescriptions
    forget_partial_runs: ForgetPartialRuns
    take_turn: TakeTurn
    end_turn: EndTurn
    profile_steps: ProfileSteps
    step_profiles: StepProfiles
    create_session: CreateSession
    session_handle: SessionHandle
    close_session: CloseSession
    make_callable: MakeCallable
    callable_handle: CallableHandle
    release_callable: ReleaseCallable
    run_step: RunStep
    cancel_step: CancelStep
    list_devices: ListDevices
    device_list: DeviceList
    done: Done
    reset: Reset
    extend_session: ExtendSession
    graph_version: GraphVersion
    partial_run_setup: PartialRunSetup
    partial_run_handle: PartialRunHandle
    partial_run: PartialRun
    def __init__(self, request_id: _Optional[int] = ..., is_answer: bool = ..., status: _Optional[_Union[Status, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[TensorMeta, _Mapping]]] = ..., settled: _Optional[_Iterable[int]] = ..., also: _Optional[_Iterable[int]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., get_status: _Optional[_Union[GetStatus, _Mapping]] = ..., task_status: _Optional[_Union[TaskStatus, _Mapping]] = ..., read_clock: _Optional[_Union[ReadClock, _Mapping]] = ..., clock_reading: _Optional[_Union[ClockReading, _Mapping]] = ..., get_progress: _Optional[_Union[GetProgress, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., get_metrics: _Optional[_Union[GetMetrics, _Mapping]] = ..., metrics: _Optional[_Union[Metrics, _Mapping]] = ..., create_worker_session: _Optional[_Union[CreateWorkerSession, _Mapping]] = ..., delete_worker_session: _Optional[_Union[DeleteWorkerSession, _Mapping]] = ..., register_graph: _Optional[_Union[RegisterGraph, _Mapping]] = ..., graph_handle: _Optional[_Union[GraphHandle, _Mapping]] = ..., deregister_graph: _Optional[_Union[DeregisterGraph, _Mapping]] = ..., run_graph: _Optional[_Union[RunGraph, _Mapping]] = ..., step_result: _Optional[_Union[StepResult, _Mapping]] = ..., cleanup_graph: _Optional[_Union[CleanupGraph, _Mapping]] = ..., recv_tensor: _Optional[_Union[RecvTensor, _Mapping]] = ..., reset_containers: _Optional[_Union[ResetContainers, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., describe_graphs: _Optional[_Union[DescribeGraphs, _Mapping]] = ..., graph_descriptions: _Optional[_Union[GraphDescriptions, _Mapping]] = ..., forget_partial_runs: _Optional[_Union[ForgetPartialRuns, _Mapping]] = ..., take_turn: _Optional[_Union[TakeTurn, _Mapping]] = ..., end_turn: _Optional[_Union[EndTurn, _Mapping]] = ..., profile_steps: _Optional[_Union[ProfileSteps, _Mapping]] = ..., step_profiles: _Optional[_Union[StepProfiles, _Mapping]] = ..., create_session: _Optional[_Union[CreateSession, _Mapping]] = ..., session_handle: _Optional[_Union[SessionHandle, _Mapping]] = ..., close_session: _Optional[_Union[CloseSession, _Mapping]] = ..., make_callable: _Optional[_Union[MakeCallable, _Mapping]] = ..., callable_handle: _Optional[_Union[CallableHandle, _Mapping]] = ..., release_callable: _Optional[_Union[ReleaseCallable, _Mapping]] = ..., run_step: _Optional[_Union[RunStep, _Mapping]] = ..., cancel_step: _Optional[_Union[CancelStep, _Mapping]] = ..., list_devices: _Optional[_Union[ListDevices, _Mapping]] = ..., device_list: _Optional[_Union[DeviceList, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., reset: _Optional[_Union[Reset, _Mapping]] = ..., extend_session: _Optional[_Union[ExtendSession, _Mapping]] = ..., graph_version: _Optional[_Union[GraphVersion, _Mapping]] = ..., partial_run_setup: _Optional[_Union[PartialRunSetup, _Mapping]] = ..., partial_run_handle: _Optional[_Union[PartialRunHandle, _Mapping]] = ..., partial_run: _Optional[_Union[PartialRun, _Mapping]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "type", "message", "op", "op_type", "source", "task", "is_derived")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    IS_DERIVED_FIELD_NUMBER: _ClassVar[int]
    code: int
    type: str
    message: str
    op: str
    op_type: str
    source: str
    task: str
    is_derived: bool
    def __init__(self, code: _Optional[int] = ..., type: _Optional[str] = ..., message: _Optional[str] = ..., op: _Optional[str] = ..., op_type: _Optional[str] = ..., source: _Optional[str] = ..., task: _Optional[str] = ..., is_derived: bool = ...) -> None: ...

class TensorMeta(_message.Message):
    __slots__ = ("dtype", "shape", "content", "strings")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    dtype: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    strings: Strings
    def __init__(self, dtype: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ..., strings: _Optional[_Union[Strings, _Mapping]] = ...) -> None: ...

class Strings(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, value: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "task", "incarnation", "cluster", "addresses", "numbers_from")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FROM_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    task: str
    incarnation: int
    cluster: str
    addresses: str
    numbers_from: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., task: _Optional[str] = ..., incarnation: _Optional[int] = ..., cluster: _Optional[str] = ..., addresses: _Optional[str] = ..., numbers_from: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatus(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("task", "incarnation", "version", "is_draining", "sessions", "running_steps", "devices")
    TASK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_STEPS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    task: str
    incarnation: int
    version: str
    is_draining: bool
    sessions: int
    running_steps: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceAttributes]
    def __init__(self, task: _Optional[str] = ..., incarnation: _Optional[int] = ..., version: _Optional[str] = ..., is_draining: bool = ..., sessions: _Optional[int] = ..., running_steps: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceAttributes, _Mapping]]] = ...) -> None: ...

class DeviceAttributes(_message.Message):
    __slots__ = ("name", "device_type", "memory_limit", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    device_type: str
    memory_limit: int
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., device_type: _Optional[str] = ..., memory_limit: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ReadClock(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClockReading(_message.Message):
    __slots__ = ("nanos",)
    NANOS_FIELD_NUMBER: _ClassVar[int]
    nanos: int
    def __init__(self, nanos: _Optional[int] = ...) -> None: ...

class GetProgress(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class GetMetrics(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("task", "seconds", "samples", "url", "addresses")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    task: str
    seconds: float
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    url: str
    addresses: _containers.ScalarMap[str, str]
    def __init__(self, task: _Optional[str] = ..., seconds: _Optional[float] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., url: _Optional[str] = ..., addresses: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("name", "labels", "value")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    labels: _containers.ScalarMap[str, str]
    value: float
    def __init__(self, name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., value: _Optional[float] = ...) -> None: ...

class ProfileSteps(_message.Message):
    __slots__ = ("steps", "timeout_ms")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    timeout_ms: int
    def __init__(self, steps: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class StepProfiles(_message.Message):
    __slots__ = ("task", "steps")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    task: str
    steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, task: _Optional[str] = ..., steps: _Optional[_Iterable[int]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateWorkerSession(_message.Message):
    __slots__ = ("session", "is_isolated")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    IS_ISOLATED_FIELD_NUMBER: _ClassVar[int]
    session: str
    is_isolated: bool
    def __init__(self, session: _Optional[str] = ..., is_isolated: bool = ...) -> None: ...

class DeleteWorkerSession(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class RegisterGraph(_message.Message):
    __slots__ = ("session", "graph", "optimises", "constants", "carried", "taken", "keeps")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    OPTIMISES_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    session: str
    graph: bytes
    optimises: bool
    constants: _containers.RepeatedScalarFieldContainer[int]
    carried: _containers.RepeatedScalarFieldContainer[int]
    taken: _containers.RepeatedScalarFieldContainer[int]
    keeps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[str] = ..., graph: _Optional[bytes] = ..., optimises: bool = ..., constants: _Optional[_Iterable[int]] = ..., carried: _Optional[_Iterable[int]] = ..., taken: _Optional[_Iterable[int]] = ..., keeps: _Optional[_Iterable[int]] = ...) -> None: ...

class GraphHandle(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: int
    def __init__(self, graph: _Optional[int] = ...) -> None: ...

class DeregisterGraph(_message.Message):
    __slots__ = ("session", "graphs", "constants")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    session: str
    graphs: _containers.RepeatedScalarFieldContainer[int]
    constants: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[str] = ..., graphs: _Optional[_Iterable[int]] = ..., constants: _Optional[_Iterable[int]] = ...) -> None: ...

class RunGraph(_message.Message):
    __slots__ = ("graph", "step", "timeout_ms", "trace_level", "partial_run")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RUN_FIELD_NUMBER: _ClassVar[int]
    graph: int
    step: int
    timeout_ms: int
    trace_level: int
    partial_run: int
    def __init__(self, graph: _Optional[int] = ..., step: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., trace_level: _Optional[int] = ..., partial_run: _Optional[int] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step_stats",)
    STEP_STATS_FIELD_NUMBER: _ClassVar[int]
    step_stats: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, step_stats: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CleanupGraph(_message.Message):
    __slots__ = ("step", "status")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    step: int
    status: Status
    def __init__(self, step: _Optional[int] = ..., status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class TakeTurn(_message.Message):
    __slots__ = ("step", "session", "devices")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    step: int
    session: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[int] = ..., session: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ...) -> None: ...

class EndTurn(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class ForgetPartialRuns(_message.Message):
    __slots__ = ("session", "partial_runs")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RUNS_FIELD_NUMBER: _ClassVar[int]
    session: str
    partial_runs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[str] = ..., partial_runs: _Optional[_Iterable[int]] = ...) -> None: ...

class RecvTensor(_message.Message):
    __slots__ = ("step", "keys")
    STEP_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    step: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ResetContainers(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, containers: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeGraphs(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GraphDescriptions(_message.Message):
    __slots__ = ("task", "graphs", "plans")
    TASK_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    task: str
    graphs: _containers.RepeatedScalarFieldContainer[bytes]
    plans: _containers.RepeatedCompositeFieldContainer[PlanDescription]
    def __init__(self, task: _Optional[str] = ..., graphs: _Optional[_Iterable[bytes]] = ..., plans: _Optional[_Iterable[_Union[PlanDescription, _Mapping]]] = ...) -> None: ...

class PlanDescription(_message.Message):
    __slots__ = ("device", "streams", "arena_bytes", "lower_bound_bytes", "groups", "programs")
    class Group(_message.Message):
        __slots__ = ("name", "members")
        NAME_FIELD_NUMBER: _ClassVar[int]
        MEMBERS_FIELD_NUMBER: _ClassVar[int]
        name: str
        members: str
        def __init__(self, name: _Optional[str] = ..., members: _Optional[str] = ...) -> None: ...
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOWER_BOUND_BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    device: str
    streams: int
    arena_bytes: int
    lower_bound_bytes: int
    groups: _containers.RepeatedCompositeFieldContainer[PlanDescription.Group]
    programs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, device: _Optional[str] = ..., streams: _Optional[int] = ..., arena_bytes: _Optional[int] = ..., lower_bound_bytes: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[PlanDescription.Group, _Mapping]]] = ..., programs: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateSession(_message.Message):
    __slots__ = ("is_isolated", "device_filters", "allow_soft_placement", "optimises", "log_device_placement", "connect_timeout_ms")
    IS_ISOLATED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FILTERS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_SOFT_PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    OPTIMISES_FIELD_NUMBER: _ClassVar[int]
    LOG_DEVICE_PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CONNECT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    is_isolated: bool
    device_filters: _containers.RepeatedScalarFieldContainer[str]
    allow_soft_placement: bool
    optimises: bool
    log_device_placement: bool
    connect_timeout_ms: int
    def __init__(self, is_isolated: bool = ..., device_filters: _Optional[_Iterable[str]] = ..., allow_soft_placement: bool = ..., optimises: bool = ..., log_device_placement: bool = ..., connect_timeout_ms: _Optional[int] = ...) -> None: ...

class SessionHandle(_message.Message):
    __slots__ = ("session", "devices")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    session: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceAttributes]
    def __init__(self, session: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceAttributes, _Mapping]]] = ...) -> None: ...

class CloseSession(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class ExtendSession(_message.Message):
    __slots__ = ("session", "version", "graph", "positions", "fed")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    FED_FIELD_NUMBER: _ClassVar[int]
    session: str
    version: int
    graph: bytes
    positions: _containers.RepeatedScalarFieldContainer[int]
    fed: _containers.RepeatedCompositeFieldContainer[FedOperation]
    def __init__(self, session: _Optional[str] = ..., version: _Optional[int] = ..., graph: _Optional[bytes] = ..., positions: _Optional[_Iterable[int]] = ..., fed: _Optional[_Iterable[_Union[FedOperation, _Mapping]]] = ...) -> None: ...

class FedOperation(_message.Message):
    __slots__ = ("name", "dtypes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtypes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtypes: _Optional[_Iterable[int]] = ...) -> None: ...

class GraphVersion(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class TensorName(_message.Message):
    __slots__ = ("op", "output")
    OP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    op: str
    output: int
    def __init__(self, op: _Optional[str] = ..., output: _Optional[int] = ...) -> None: ...

class MakeCallable(_message.Message):
    __slots__ = ("session", "feeds", "fed", "fetches", "targets", "done")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FEEDS_FIELD_NUMBER: _ClassVar[int]
    FED_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    session: str
    feeds: bytes
    fed: _containers.RepeatedCompositeFieldContainer[TensorName]
    fetches: _containers.RepeatedCompositeFieldContainer[TensorName]
    targets: _containers.RepeatedScalarFieldContainer[str]
    done: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[str] = ..., feeds: _Optional[bytes] = ..., fed: _Optional[_Iterable[_Union[TensorName, _Mapping]]] = ..., fetches: _Optional[_Iterable[_Union[TensorName, _Mapping]]] = ..., targets: _Optional[_Iterable[str]] = ..., done: _Optional[_Iterable[str]] = ...) -> None: ...

class CallableHandle(_message.Message):
    __slots__ = ("callable", "placement")
    class PlacementEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CALLABLE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    callable: int
    placement: _containers.ScalarMap[str, str]
    def __init__(self, callable: _Optional[int] = ..., placement: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReleaseCallable(_message.Message):
    __slots__ = ("session", "callable")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALLABLE_FIELD_NUMBER: _ClassVar[int]
    session: str
    callable: int
    def __init__(self, session: _Optional[str] = ..., callable: _Optional[int] = ...) -> None: ...

class RunStep(_message.Message):
    __slots__ = ("session", "callable", "timeout_ms", "trace_level")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALLABLE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    session: str
    callable: int
    timeout_ms: int
    trace_level: int
    def __init__(self, session: _Optional[str] = ..., callable: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., trace_level: _Optional[int] = ...) -> None: ...

class PartialRunSetup(_message.Message):
    __slots__ = ("session", "feeds", "fed", "fetches", "targets", "released")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FEEDS_FIELD_NUMBER: _ClassVar[int]
    FED_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    session: str
    feeds: bytes
    fed: _containers.RepeatedCompositeFieldContainer[TensorName]
    fetches: _containers.RepeatedCompositeFieldContainer[TensorName]
    targets: _containers.RepeatedScalarFieldContainer[str]
    released: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[str] = ..., feeds: _Optional[bytes] = ..., fed: _Optional[_Iterable[_Union[TensorName, _Mapping]]] = ..., fetches: _Optional[_Iterable[_Union[TensorName, _Mapping]]] = ..., targets: _Optional[_Iterable[str]] = ..., released: _Optional[_Iterable[int]] = ...) -> None: ...

class PartialRunHandle(_message.Message):
    __slots__ = ("partial_run",)
    PARTIAL_RUN_FIELD_NUMBER: _ClassVar[int]
    partial_run: int
    def __init__(self, partial_run: _Optional[int] = ...) -> None: ...

class PartialRun(_message.Message):
    __slots__ = ("session", "partial_run", "fed", "fetches", "targets", "timeout_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RUN_FIELD_NUMBER: _ClassVar[int]
    FED_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session: str
    partial_run: int
    fed: _containers.RepeatedCompositeFieldContainer[TensorName]
    fetches: _containers.RepeatedCompositeFieldContainer[TensorName]
    targets: _containers.RepeatedScalarFieldContainer[str]
    timeout_ms: int
    def __init__(self, session: _Optional[str] = ..., partial_run: _Optional[int] = ..., fed: _Optional[_Iterable[_Union[TensorName, _Mapping]]] = ..., fetches: _Optional[_Iterable[_Union[TensorName, _Mapping]]] = ..., targets: _Optional[_Iterable[str]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class CancelStep(_message.Message):
    __slots__ = ("request_id", "status")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    status: Status
    def __init__(self, request_id: _Optional[int] = ..., status: _Optional[_Union[Status, _Mapping]] = ...) -> None: ...

class ListDevices(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, containers: _Optional[_Iterable[str]] = ...) -> None: ...

class DeviceList(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceAttributes]
    def __init__(self, devices: _Optional[_Iterable[_Union[DeviceAttributes, _Mapping]]] = ...) -> None: ...
