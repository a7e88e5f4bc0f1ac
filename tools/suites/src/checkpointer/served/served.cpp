// Adds up the numbers that come by a Unix socket, and says the sum. Meanwhile threads change
// a map each, and find out whether it is still what it was.

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

static std::atomic<long> wrong{0}, rounds{0};
static std::mutex mutex;
static std::condition_variable wanted;
static std::vector<long> numbers;

static void work(unsigned seed) {
    std::map<long, std::string> map;
    for (long round = 0;; round++) {
        long key = rand_r(&seed) % 1000;
        auto [at, is_new] = map.try_emplace(key, std::to_string(key));
        if (!is_new && at->second != std::to_string(key)) wrong++;
        if (round % 3 == 0) map.erase(rand_r(&seed) % 1000);
        rounds++;
        thread_local long own = 0;
        if (++own != round + 1) wrong++;
        std::unique_lock<std::mutex> held(mutex);
        wanted.wait_for(held, std::chrono::microseconds(200));
    }
}

int main(int, char **arguments) {
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, arguments[1], sizeof address.sun_path - 1);
    for (unsigned seed = 1; seed <= 4; seed++) std::thread(work, seed).detach();
    if (bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) || listen(listener, 16))
        return 2;
    for (;;) {
        int client = accept(listener, nullptr, nullptr);
        char text[64] = {};
        if (client < 0) continue;
        if (read(client, text, sizeof text - 1) > 0) {
            long before = rounds;
            std::string said;
            {
                std::lock_guard<std::mutex> held(mutex);
                numbers.push_back(atol(text));
                long sum = std::accumulate(numbers.begin(), numbers.end(), 0l);
                said = "sum " + std::to_string(sum) + "\n";
            }
            wanted.notify_all();
            // All threads go on, or this waits for ever.
            while (rounds < before + 100) usleep(100);
            if (wrong) said = "wrong\n";
            if (write(client, said.data(), said.size()) < 0) wrong++;
        }
        close(client);
    }
}
