// Calls functions of a library for another process, whose memory it asks for page by page: a call's arguments are that
// process's addresses.
//
//   emulated LIBRARY
//
// Messages, of 64-bit numbers. To this program: a function's name (64 bytes) and 20 arguments. From it: an address
// whose page it needs, which it then reads (4096 bytes); or 0, then the result, the number of pages, and each page with
// its address. The other process takes from them what has changed.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr long kPage = 4096;
constexpr int kArguments = 20, kMostPages = 1 << 16;
uint64_t pages[kMostPages];
long num_pages = 0;

void transfer(ssize_t (*move)(int, void*, size_t), int file, void* data, size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t count = move(file, at, bytes);
    if (count <= 0) _exit(0);  // the other process has ended
    at += count;
    bytes -= count;
  }
}

void receive(void* data, size_t bytes) { transfer(read, 0, data, bytes); }
void send(const void* data, size_t bytes) {
  const auto put = [](int file, void* from, size_t count) { return write(file, from, count); };
  transfer(put, 1, const_cast<void*>(data), bytes);
}

void fetch_page(int, siginfo_t* info, void*) {
  const uint64_t page = reinterpret_cast<uint64_t>(info->si_addr) / kPage * kPage;
  void* place = reinterpret_cast<void*>(page);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  if (page == 0 || num_pages == kMostPages || mmap(place, kPage, PROT_READ | PROT_WRITE, kFlags, -1, 0) != place)
    abort();
  send(&page, sizeof page);
  receive(place, kPage);
  pages[num_pages++] = page;
}

}  // namespace

int main(int, char** arguments) {
  struct sigaction action = {};
  action.sa_sigaction = fetch_page;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  for (;;) {
    char name[64];
    int64_t a[kArguments];
    receive(name, sizeof name);
    receive(a, sizeof a);
    // As many integers as any function takes: in registers and on the stack, in the places of integers and pointers.
    using Function =
        int64_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
    const auto function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    const int64_t result = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
                                    a[13], a[14], a[15], a[16], a[17], a[18], a[19]);
    const int64_t end[] = {0, result, num_pages};
    send(end, sizeof end);
    for (; num_pages > 0; --num_pages) {
      void* place = reinterpret_cast<void*>(pages[num_pages - 1]);
      send(&pages[num_pages - 1], sizeof(uint64_t));
      send(place, kPage);
      munmap(place, kPage);
    }
  }
}
