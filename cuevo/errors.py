"""The errors that cuevo raises by itself, and its warning.

Bad arguments raise ``ValueError`` or ``TypeError``, as anywhere in Python. Everything below is for
what goes wrong after the arguments were found to be good.
"""


class CuevoError(Exception):
    """Base of every error of this package that is not about an argument."""


class TemplateError(CuevoError):
    """A kernel's template does not render; the message begins with ``ptx/<file>:<line>:``."""


class AssemblerError(CuevoError):
    """The assembler refused a kernel.

    The message has one ``ptx/<file>:<line>: <message>`` line for each of the assembler's
    complaints, and ends with the parameters of the kernel's instance.
    """


class SimulatorError(CuevoError):
    """The CPU executor refused or caught something; it begins with ``ptx/<file>:<line>:``."""


class DriverError(CuevoError):
    """A call of the CUDA driver failed.

    The message has the driver's name and text of the error, the kernel and its configuration.
    """


class DeviceUnavailable(CuevoError):
    """There is no device for the request.

    The message says what was looked for, what was found and what to do.
    """


class CpuExecutorWarning(UserWarning):
    """A call that takes long runs on the CPU executor, because there is no GPU and nobody has said
    where to run.
    """
