# cython: language_level=3
"""The raw TCP of server.py: one call receives a frame of each client, another sends all answers.

    cythonize -i sockets.pyx

Both calls work without Python's lock. `receive` reads at most one frame of a connection. The others wait in the
kernel, whose buffer for the connection is small, so a client that is too fast has to wait too.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t
from libc.stdlib cimport abs, calloc, free, malloc
from libc.string cimport memcpy

cdef extern from "<sys/epoll.h>" nogil:
    enum: EPOLLIN, EPOLL_CTL_ADD, EPOLL_CTL_DEL
    ctypedef union epoll_data:
        void *ptr
    struct epoll_event:
        int events
        epoll_data data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int most, int timeout)

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_DONTWAIT, MSG_NOSIGNAL
    Py_ssize_t recv(int fd, void *to, size_t bytes, int flags)
    Py_ssize_t send(int fd, const void *data, size_t bytes, int flags)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef enum:
    MOST = 1024
    NAME = 200
    NOTHING, FRAME, OTHER, ENDED
LONGEST_NAME = NAME  # bytes

cdef struct Peer:
    int fd
    int32_t filled
    bint named
    void *connection
    char *message  # the bytes of the next message that have arrived: 4 for its size, and those of the message


cdef class Connection:
    """A client. `name` is None until its first message, the name, was accepted."""

    cdef Peer peer
    cdef readonly object socket
    cdef public object name

    def __cinit__(self, socket, int frame):
        self.socket, self.name = socket, None
        self.peer.fd, self.peer.connection = socket.fileno(), <void *>self
        self.peer.message = <char *>malloc(4 + max(frame, NAME))
        if self.peer.message == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.peer.message)


cdef int read(Peer *peer, int32_t frame) noexcept nogil:
    """Reads a part of the next message: FRAME if it is one now, NOTHING if bytes are missing."""
    cdef int32_t size = frame if peer.named else 0  # a name is read in two parts, and no byte after it
    cdef Py_ssize_t n
    if peer.filled >= 4 and not peer.named:
        memcpy(&size, peer.message, 4)
    n = recv(peer.fd, peer.message + peer.filled, 4 + abs(size) - peer.filled, MSG_DONTWAIT)
    if n <= 0:
        return NOTHING if n < 0 and (errno == EAGAIN or errno == EINTR) else ENDED
    peer.filled += <int32_t>n
    if peer.filled < 4:
        return NOTHING
    memcpy(&size, peer.message, 4)
    if peer.named:
        return OTHER if size != frame else FRAME if peer.filled == 4 + frame else NOTHING
    return OTHER if not -NAME <= size < 0 or peer.filled == 4 - size else NOTHING


cdef class Sockets:
    """The connections of a server whose clients send frames of `frame` bytes. `fileno` is readable if one has sent."""

    cdef int epoll
    cdef readonly int frame
    cdef readonly bytearray x  # the frames of a call of `receive`
    cdef set connections

    def __cinit__(self, int frame):
        self.frame, self.connections, self.x = frame, set(), bytearray(MOST * frame)
        self.epoll = epoll_create1(0)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self):
        close(self.epoll)

    def fileno(self):
        return self.epoll

    def add(self, Connection connection):
        cdef epoll_event event
        event.events, event.data.ptr = EPOLLIN, &connection.peer
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, connection.peer.fd, &event):
            raise OSError(errno, "epoll_ctl")
        self.connections.add(connection)

    def pause(self, Connection connection):
        """Reads nothing more, until `accept`."""
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, connection.peer.fd, NULL)

    def accept(self, Connection connection, name):
        connection.name, connection.peer.named = name, True
        self.add(connection)

    def close(self, Connection connection):
        if connection in self.connections:
            self.connections.remove(connection)
            epoll_ctl(self.epoll, EPOLL_CTL_DEL, connection.peer.fd, NULL)
            connection.socket.close()

    def receive(self):
        """Writes frames to x. Returns their connections, the names of these, and [(connection, bytes)].

        The last has other messages than frames, with the size that they announce. An end has None as bytes.
        """
        cdef epoll_event events[MOST]
        cdef Peer *framed[MOST]
        cdef Peer *others[MOST]
        cdef bint ended[MOST]
        cdef int n, k, found, rows = 0, many = 0
        cdef Peer *peer
        cdef char *x = self.x
        with nogil:
            n = epoll_wait(self.epoll, events, MOST, 0)
            for k in range(n):
                peer = <Peer *>events[k].data.ptr
                found = read(peer, self.frame)
                if found == FRAME:
                    memcpy(x + rows * self.frame, peer.message + 4, self.frame)
                    peer.filled = 0
                    framed[rows] = peer
                    rows += 1
                elif found != NOTHING:
                    others[many], ended[many] = peer, found == ENDED
                    many += 1
        connections = [<Connection>framed[k].connection for k in range(rows)]
        names = [(<Connection>framed[k].connection).name for k in range(rows)]
        rest = []
        for k in range(many):
            peer = others[k]
            rest.append((<Connection>peer.connection, None if ended[k] else peer.message[:peer.filled]))
            peer.filled = 0
        return connections, names, rest

    def answer(self, list connections, bytes y):
        """Sends an R-th of y to each of R connections. Returns those that do not read, so the kernel has no space."""
        cdef int rows = len(connections), n, k, many = 0
        cdef int32_t size = len(y) // rows if rows else 0
        cdef const char *data = y
        cdef int fds[MOST]
        cdef int others[MOST]
        cdef char *message
        if rows > MOST or rows * size != len(y):
            raise ValueError("y must have an equal part for each connection")
        for k in range(rows):
            fds[k] = (<Connection?>connections[k]).peer.fd
        message = <char *>malloc(4 + size)
        if message == NULL:
            raise MemoryError
        with nogil:
            memcpy(message, &size, 4)
            for k in range(rows):
                memcpy(message + 4, data + k * size, size)
                n = <int>send(fds[k], message, 4 + size, MSG_DONTWAIT | MSG_NOSIGNAL)
                if 0 <= n < 4 + size or n < 0 and errno == EAGAIN:
                    others[many] = k
                    many += 1
        free(message)
        return [connections[others[k]] for k in range(many)]
