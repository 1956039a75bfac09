// Loads libraries and calls their functions for another process, so that a fault in one of them ends this process only.
//
// Requests come on standard input, replies go to standard output (see child.py, which has the other side). Numbers are
// 64-bit words; bytes are preceded by their length. Whatever a library prints goes to standard error.

#include <dlfcn.h>
#include <link.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Word = uint64_t;

enum Request : Word { kOpen = 1, kSymbol = 2, kCall = 3, kReturn = 4, kIdle = 5, kPing = 6 };
enum Reply : Word { kResult = 0, kGrow = 1 };
enum Argument : Word { kWord = 0, kBlock = 1, kCallback = 2 };

constexpr int kMost = 24;             // arguments of a function
constexpr int kIdleMilliseconds = 2000;  // after which this process ends: it holds memory of the device

int replies = 1;
bool idle = false;

void read_all(void* to, size_t size) {
    char* next = static_cast<char*>(to);
    while (size != 0) {
        const ssize_t count = read(0, next, size);
        if (count <= 0) _exit(0);  // the other process has ended
        next += count;
        size -= static_cast<size_t>(count);
    }
}

Word word() {
    Word value = 0;
    read_all(&value, sizeof value);
    return value;
}

std::string bytes() {
    std::string data(word(), '\0');
    read_all(&data[0], data.size());
    return data;
}

// A reply, written at once.
class Writer {
public:
    Writer& word(Word value) {
        data_.append(reinterpret_cast<const char*>(&value), sizeof value);
        return *this;
    }
    Writer& bytes(const std::string& value) {
        word(value.size());
        data_ += value;
        return *this;
    }
    void send() const {
        const char* next = data_.data();
        size_t size = data_.size();
        while (size != 0) {
            const ssize_t count = write(replies, next, size);
            if (count <= 0) _exit(0);
            next += count;
            size -= static_cast<size_t>(count);
        }
    }

private:
    std::string data_;
};

void answer(Word result, const std::string& text = "") { Writer().word(kResult).word(result).bytes(text).send(); }

Word serve();

// Given to functions that take a callback from bytes to an address: the other process answers.
using Grow = void* (*)(size_t);

template <Word Index>
void* grow(size_t size) {
    Writer().word(kGrow).word(Index).word(size).send();
    return reinterpret_cast<void*>(serve());
}

constexpr Grow kGrowers[] = {grow<0>,  grow<1>,  grow<2>,  grow<3>,  grow<4>,  grow<5>,  grow<6>,  grow<7>,
                             grow<8>,  grow<9>,  grow<10>, grow<11>, grow<12>, grow<13>, grow<14>, grow<15>};

void open() {
    const Word mode = word();
    void* library = dlopen(bytes().c_str(), static_cast<int>(mode));
    if (library == nullptr) {
        answer(0, dlerror());
        return;
    }
    link_map* map = nullptr;
    const bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr;
    answer(reinterpret_cast<Word>(library), known ? map->l_name : "");
}

void symbol() {
    void* library = reinterpret_cast<void*>(word());
    const std::string name = bytes();
    answer(reinterpret_cast<Word>(dlsym(library, name.c_str())));
}

// Integers and pointers only: the calling conventions of the 64-bit systems that have MUSA pass each of them as a word,
// and a function does not see words beyond its parameters.
void call() {
    const Word address = word(), returns_text = word(), count = word();
    Word w[kMost] = {};
    std::vector<std::string> blocks;
    blocks.reserve(kMost);  // their contents stay where they are
    for (Word i = 0; i < count && i < kMost; ++i) {
        const Word kind = word();
        if (kind == kBlock) {
            blocks.push_back(bytes());
            w[i] = reinterpret_cast<Word>(&blocks.back()[0]);
        } else {
            const Word value = word();
            w[i] = kind == kCallback ? reinterpret_cast<Word>(kGrowers[value % 16]) : value;
        }
    }
    using W = Word;
    using Function = W (*)(W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W);
    const Word result = reinterpret_cast<Function>(address)(
        w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15], w[16],
        w[17], w[18], w[19], w[20], w[21], w[22], w[23]);
    const char* text = returns_text ? reinterpret_cast<const char*>(result) : nullptr;
    Writer reply;
    reply.word(kResult).word(result).bytes(text != nullptr ? text : "");
    for (const std::string& block : blocks) reply.bytes(block);
    reply.send();
}

// Serves until a callback's value comes, and returns it.
Word serve() {
    for (;;) {
        if (idle) {
            pollfd input = {0, POLLIN, 0};
            if (poll(&input, 1, kIdleMilliseconds) == 0) _exit(0);
        }
        const Word request = word();
        idle = request == kIdle;
        switch (request) {
            case kOpen: open(); break;
            case kSymbol: symbol(); break;
            case kCall: call(); break;
            case kReturn: return word();
            case kPing: answer(0); break;
            default: break;
        }
    }
}

}  // namespace

int main() {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    replies = dup(1);
    dup2(2, 1);
    serve();
}
