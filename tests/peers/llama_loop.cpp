// Greedy generation by llama.cpp from token ids, timed. A worker: `llama_loop MODEL THREADS CONTEXT` answers each line
// `COUNT ID ID ...` on standard input with `FIRST_TOKEN_US TOTAL_US ID ID ...`, both times from the start of the request.

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

[[noreturn]] static void fail(const std::string & message) {
    std::fprintf(stderr, "llama_loop: %s\n", message.c_str());
    std::exit(1);
}

static llama_token most_probable(llama_context * context, int vocab) {
    const float * logits = llama_get_logits_ith(context, -1);
    return static_cast<llama_token>(std::max_element(logits, logits + vocab) - logits);
}

static void decode(llama_context * context, llama_token * tokens, int count) {
    if (llama_decode(context, llama_batch_get_one(tokens, count)) != 0) {
        fail("llama_decode failed");
    }
}

int main(int argc, char ** argv) {
    if (argc != 4) {
        fail("usage: llama_loop MODEL THREADS CONTEXT");
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            std::fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == nullptr) {
        fail(std::string("cannot load ") + argv[1]);
    }
    llama_context_params params = llama_context_default_params();
    params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
    params.n_ctx = params.n_batch = static_cast<uint32_t>(std::atoi(argv[3]));
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context * context = llama_init_from_model(model, params);
    if (context == nullptr) {
        fail("cannot make a context");
    }
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream request(line);
        int count = 0;
        request >> count;
        std::vector<llama_token> prompt;
        for (llama_token id; request >> id;) {
            prompt.push_back(id);
        }
        if (count < 1 || prompt.empty()) {
            fail("expected COUNT ID ID ..., found: " + line);
        }
        llama_memory_clear(llama_get_memory(context), true);

        const auto start = Clock::now();
        const auto since = [start] {
            return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
        };
        decode(context, prompt.data(), static_cast<int>(prompt.size()));
        std::vector<llama_token> ids = {most_probable(context, vocab)};
        const auto first = since();
        while (static_cast<int>(ids.size()) < count) {
            llama_token last = ids.back();
            decode(context, &last, 1);
            ids.push_back(most_probable(context, vocab));
        }
        std::cout << first << ' ' << since();
        for (llama_token id : ids) {
            std::cout << ' ' << id;
        }
        std::cout << std::endl;
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}
