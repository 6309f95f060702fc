/* netperfmeter opens SCTP sockets first of all and gives up where the kernel has none. Preloaded into
 * it, this gives it a socket that nobody speaks to in their place; TCP and Multipath TCP stay as they
 * are. For benches/live.sh only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

static char stands_in[65536];

static int is_known(int fd) { return fd >= 0 && fd < (int)sizeof stands_in; }

int socket(int domain, int type, int protocol)
{
    int (*next)(int, int, int) = dlsym(RTLD_NEXT, "socket");
    int sctp = protocol == IPPROTO_SCTP;
    int fd = sctp ? next(domain, (type & ~0xf) | SOCK_DGRAM, 0) : next(domain, type, protocol);
    if (is_known(fd)) stands_in[fd] = sctp;
    return fd;
}

int listen(int fd, int backlog)
{
    int (*next)(int, int) = dlsym(RTLD_NEXT, "listen");
    return is_known(fd) && stands_in[fd] ? 0 : next(fd, backlog);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    int (*next)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
    return level == IPPROTO_SCTP ? 0 : next(fd, level, name, value, length);
}
