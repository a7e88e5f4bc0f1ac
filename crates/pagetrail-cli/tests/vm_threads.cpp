// Exceptions that cross threads, futures, and storage of threads.
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static thread_local std::map<int, std::string> own;

static int count(int from)
{
    for (int i = 0; i < 300; i++) {
        own[from + i] = std::to_string(i);
        try {
            if (i % 10 == from % 10)
                throw std::out_of_range(own[from + i]);
        } catch (const std::exception &error) {
            own[from + i] = std::string("caught ") + error.what();
        }
    }
    if (from == 3)
        throw std::runtime_error("from another thread");
    return std::accumulate(own.begin(), own.end(), 0,
                           [](int sum, const auto &entry) { return sum + (int)entry.second.size(); });
}

int main()
{
    std::vector<std::future<int>> futures;
    for (int i = 0; i < 6; i++)
        futures.push_back(std::async(std::launch::async, count, i));
    for (auto &future : futures)
        try {
            std::cout << future.get() << "\n";
        } catch (const std::exception &error) {
            std::cout << error.what() << "\n";
        }
    auto shared = std::make_shared<std::vector<int>>(1000, 1);
    std::vector<std::thread> threads;
    std::promise<void> go;
    auto gone = go.get_future().share();
    for (int i = 0; i < 4; i++)
        threads.emplace_back([=] {
            gone.wait();
            for (int at = i; at < 1000; at += 4)
                (*shared)[at] += i;
        });
    go.set_value();
    for (auto &thread : threads)
        thread.join();
    std::cout << std::accumulate(shared->begin(), shared->end(), 0) << " " << shared.use_count() << "\n";
}
