# shellcheck shell=bash disable=SC2154,SC2034
# What gpu_check.sh times: kernels, whole steps, memory. Sourced by it.

# bench NAME SECONDS RECIPE SETTINGS...: steps of it, as logs/NAME.json.
bench() {
  local name="$1" seconds="$2" recipe="$3" sheet
  shift 3
  sheet="$(smi name | grep -ioE -m 1 'h[128]00|a100|b200')" || true
  into="$logs/$name.json" try "$name" "$seconds" "$llmtrain" bench "$root/configs/$recipe.yaml" run.device=cuda \
    "run.product_cache=$work/products.txt" --steps "${steps:-$few}" --json ${sheet:+--profile "${sheet,,}"} "$@"
}
few=10
# Each sample is one document, as PyTorch's are.
whole=data.packing.cross_document_attention=true

# What is compared: a name, a tab, settings.
settings="bf16	precision.compute=bf16
again	precision.compute=bf16
determinism_fast	precision.compute=bf16 run.determinism=fast
no_graphs	precision.compute=bf16 run.cuda_graphs=off
own_attention	precision.compute=bf16 run.attention=own
guessed_products	precision.compute=bf16 run.tune_products=false
remainder	precision.compute=bf16 precision.master=bf16+remainder
no_master	precision.compute=bf16 precision.master=none
fp16	precision.compute=fp16
fp32	precision.compute=fp32
tf32	precision.compute=fp32 precision.tf32=true"

modes() {
  local name overrides
  while IFS=$'\t' read -r name overrides; do
    # shellcheck disable=SC2086  # words
    bench "mode_$name" 40 gpt2-124m training.micro_batch_size=16 training.global_batch_size=16 "$whole" $overrides || true
  done <<<"$settings"
  rows_of table_of modes "$logs" "$settings"
}

runs() {
  local name overrides
  while IFS=$'\t' read -r name overrides; do
    # shellcheck disable=SC2086  # words
    try "run_$name" 40 "$llmtrain" run "$root/configs/quickstart.yaml" run.device=cuda run.output_dir="$work/$name" \
      "data.sources=[{path: $root/lib}]" training.max_time=null training.num_epochs=null \
      "$whole" training.max_steps=$((10 * ${steps:-10})) lr_scheduler.horizon=steps \
      checkpoint.interval=100000 eval.interval=100000 \
      metrics.interval=1 "run.product_cache=$work/products.txt" $overrides ${GPU_CHECK_OURS:-} || true
  done <<<"$settings"
  rows_of table_of runs "$work" "$settings"
}

# What lies on the GPU's host, in its memory or in a file, changes no bit.
offload() {
  local settings="bf16	precision.compute=bf16
offload_states_host	precision.compute=bf16 offload.optimizer=host
offload_states_file	precision.compute=bf16 offload.optimizer=nvme
offload_masters_host	precision.compute=bf16 offload.optimizer=host offload.master=host
offload_parameters_host	precision.compute=bf16 offload.optimizer=host offload.master=host offload.parameters=host
offload_parameters_file	precision.compute=bf16 offload.optimizer=nvme offload.master=nvme offload.parameters=nvme
offload_activations_host	precision.compute=bf16 activation_checkpoint.mode=full offload.activations=[block]
offload_activations_file	precision.compute=bf16 activation_checkpoint.mode=full offload.activations=[block] offload.activation_place=nvme
offload_all_host	precision.compute=bf16 activation_checkpoint.mode=full offload.optimizer=host offload.master=host offload.parameters=host offload.activations=[block]"
  runs
}

# Two layers of the 7B shape; a sample is 8,192 tokens of one document. A backward of cuDNN in a fixed order wants
# 7.2 GiB for both samples, 0.9 GiB for the smallest piece (docs/gpu-results.md, "cuDNN").
kernels() {
  local name attention overrides wgmma
  while read -r name attention overrides; do
    wgmma="${LLMTRAIN_WGMMA:-}"
    [ "$name" = mma ] && wgmma=off
    # shellcheck disable=SC2086  # words
    LLMTRAIN_WGMMA="$wgmma" bench "kernels_$name" 120 qwen2.5-7b model.num_hidden_layers=2 \
      training.seq_len="${GPU_CHECK_TOKENS:-8192}" training.micro_batch_size=2 training.global_batch_size=2 \
      activation_checkpoint.mode=none "$whole" run.attention="$attention" $overrides || continue
    grep -hos 'attention: .*' "$logs/kernels_$name.log" >"$work/said" || true
    rows_of cat "$work/said"
    rows_of table_of kernels "$logs/kernels_$name.json" "$name"
  done <<'END'
cudnn auto run.library_workspace=8GiB
cudnn_in_pieces auto run.library_workspace=1GiB
cudnn_any_order auto run.library_workspace=1GiB run.determinism=fast
wgmma own
mma own
END
}

# The driver's figure of the GPU's memory beside the plan's, with an arena of the size that the plan says.
memory() {
  local recipe before sampler
  for recipe in gpt2-124m qwen2.5-1.5b; do
    before="$(smi memory.used)"
    : >"$work/used"
    while sleep 0.2; do smi memory.used >>"$work/used"; done &
    sampler=$!
    bench "memory_$recipe" 150 "$recipe" training.global_batch_size=32 "$whole" --planned-memory || true
    kill "$sampler" 2>/dev/null || true
    wait "$sampler" 2>/dev/null || true
    rows_of table_of memory "$logs/memory_$recipe.json" "$recipe" "${before:-}" "$(sort -n "$work/used" | tail -n 1)"
  done
}

# benchmark MODEL: ours, PyTorch's beside it, and ours with other settings, by updates over several micro-batches. The
# work is PyTorch's: each sample is one document, but for the last row, and an update has as many samples on both sides.
benchmark() {
  local recipe batch times setting name more=()
  case "$1" in
    # As the plan for an H200 has the most MFU; docs/gpu-results.md has its figures.
    124m) recipe=gpt2-124m batch=32 times=16 ;;
    1558m) recipe=gpt2-1558m batch=16 times=4 ;;
    1.5b) recipe=qwen2.5-1.5b batch=16 times=8 ;;
    7b) recipe=qwen2.5-7b batch=4 times=16 more=(precision.master=bf16+remainder activation_checkpoint.mode=none) ;;
  esac
  [ "$1" = 124m ] || few=4
  batch="${GPU_CHECK_BATCH:-$batch}" times="${GPU_CHECK_TIMES:-$times}"
  local ours=("training.micro_batch_size=$batch" "training.global_batch_size=$((batch * times))" "${more[@]}")
  # shellcheck disable=SC2086  # words, of our own row alone
  bench ours 200 "$recipe" "${ours[@]}" "$whole" ${GPU_CHECK_OURS:-} || return 0
  grep -hos -E '(products|attention): .*' "$logs/ours.log" >"$work/said" || true
  rows_of cat "$work/said"
  row "an update" "$times micro-batches of $batch samples of 1,024 tokens"
  rows_of table_of step "$logs"
  # Before PyTorch's, while there is time: both modes are asked for of every model.
  other determinism_fast "$whole" run.determinism=fast
  other fp8 "$whole" precision.compute=fp8 run.determinism=fast
  for setting in "fused compile cuda" "fused cuda"; do
    case "$setting" in
      *compile*) wanted pytorch || wanted pytorch_compile || continue ;;
      *) wanted pytorch || continue ;;
    esac
    name="torch_${setting// /_}"
    # shellcheck disable=SC2086  # words
    if theirs=1 into="$logs/$name.json" try "$name" 200 python3 "$root/scripts/bench/torch_step.py" \
      "${GPU_CHECK_TORCH_MODEL:-$1}" bf16 0 "${steps:-$few}" ${GPU_CHECK_TORCH_SETTING:-$setting} samples=$((batch * times)); then
      rows_of table_of pytorch "$logs" "$name"
    fi
  done
  other own_attention "$whole" run.attention=own
  other guessed_products "$whole" run.tune_products=false
  other documents
}
wanted() { case " $rows " in *" $1 "*) ;; *) return 1 ;; esac; }
# other NAME SETTINGS...: the step of benchmark() with other settings.
other() {
  local name="$1"
  wanted "$name" || return 0
  shift
  if bench "$name" 200 "$recipe" "${ours[@]}" "$@"; then rows_of table_of other "$logs" "$name"; fi
}

# Norms of rows as cuDNN's own benchmark of RMSNorm has them, with the residual sum that ours have beside, in models that
# are hardly anything else.
norms() {
  local rows hidden
  while read -r rows hidden; do
    bench "norms_${rows}x$hidden" 60 llama3-8b model.hidden_size="$hidden" model.intermediate_size=256 \
      model.num_hidden_layers=4 model.num_attention_heads=4 model.num_key_value_heads=4 model.head_dim=64 \
      model.vocab_size=4096 "tokenizer={type: bpe, vocab_size: 4096}" model.max_position_embeddings=1024 \
      training.seq_len=1024 training.micro_batch_size=$((rows / 1024)) training.global_batch_size=$((rows / 1024)) \
      activation_checkpoint.mode=none "$whole" || continue
    rows_of table_of kernels "$logs/norms_${rows}x$hidden.json" "norms_${rows}x$hidden"
  done <<'END'
16384 4096
8192 8192
8192 5120
END
}

# Both directions of attention by cuDNN, in a fixed order and in any, and by our kernels, in models of two layers.
attention() {
  local name recipe tokens words
  while read -r name recipe tokens words; do
    # shellcheck disable=SC2086  # words
    bench "attention_$name" 60 "$recipe" model.num_hidden_layers=2 model.vocab_size=4096 "tokenizer={type: bpe, vocab_size: 4096}" \
      model.max_position_embeddings="$tokens" training.seq_len="$tokens" training.micro_batch_size=$((32768 / tokens)) \
      training.global_batch_size=$((32768 / tokens)) run.library_workspace=1GiB activation_checkpoint.mode=none "$whole" \
      $words || continue
    rows_of table_of kernels "$logs/attention_$name.json" "$name"
  done <<'END'
64_cudnn gpt2-124m 1024 run.attention=cudnn
64_any_order gpt2-124m 1024 run.attention=cudnn run.determinism=fast
64_own gpt2-124m 1024 run.attention=own
128_cudnn qwen2.5-1.5b 1024 run.attention=cudnn
128_any_order qwen2.5-1.5b 1024 run.attention=cudnn run.determinism=fast
128_own qwen2.5-1.5b 1024 run.attention=own
128_long_cudnn qwen2.5-1.5b 4096 run.attention=cudnn
128_long_own qwen2.5-1.5b 4096 run.attention=own
END
  attention_alone
}

# The same in models that are hardly anything else, whose products leave the clock alone, beside PyTorch's on cuDNN.
attention_alone() {
  local name sequences heads kv_heads tokens head_dim way
  while read -r name sequences heads kv_heads tokens head_dim; do
    for way in run fast; do
      bench "alone_${name}_$way" 60 llama3-8b model.hidden_size=256 model.intermediate_size=256 model.num_hidden_layers=4 \
        model.num_attention_heads="$heads" model.num_key_value_heads="$kv_heads" model.head_dim="$head_dim" \
        model.vocab_size=4096 "tokenizer={type: bpe, vocab_size: 4096}" model.max_position_embeddings="$tokens" \
        training.seq_len="$tokens" training.micro_batch_size="$sequences" training.global_batch_size="$sequences" \
        run.library_workspace=1GiB activation_checkpoint.mode=none "$whole" run.attention=cudnn "run.determinism=$way" || continue
      rows_of table_of kernels "$logs/alone_${name}_$way.json" "alone_${name}_$way"
    done
    theirs=1 into="$logs/alone_${name}_torch.json" try "alone_${name}_torch" 60 \
      python3 "$root/scripts/bench/torch_attention.py" "$sequences" "$heads" "$kv_heads" "$tokens" "$head_dim" || continue
    rows_of table_of torch_attention "$logs" "alone_$name"
  done <<'END'
128_8k 2 64 8 8192 128
64_1k 32 12 12 1024 64
END
}

# What limits single kernels, by ncu: every kernel of ours in a step of one layer, once, in OUT/profile_RECIPE.txt.
profile() {
  local ncu recipe
  ncu="$(command -v ncu || ls /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | head -n 1)" || true
  if [ -z "$ncu" ]; then
    failed=1
    row "profile" "FAILED: no ncu here"
    return 0
  fi
  for recipe in gpt2-124m qwen2.5-1.5b; do
    into="$out/profile_$recipe.txt" try "profile_$recipe" 90 "$ncu" --clock-control none \
      --kernel-name 'regex:_rows|row_blocks|grad_blocks|chunks|(keys|queries|forward|delta|bounds)_kernel' --launch-count "${GPU_CHECK_LAUNCHES:-45}" \
      --section SpeedOfLight --section MemoryWorkloadAnalysis --section ComputeWorkloadAnalysis --section Occupancy \
      --section WarpStateStats --section SchedulerStats --section LaunchStats --section InstructionStats \
      "$llmtrain" bench "$root/configs/$recipe.yaml" run.device=cuda run.cuda_graphs=off run.tune_products=false \
      run.attention=own model.num_hidden_layers=1 training.micro_batch_size=16 training.global_batch_size=16 \
      training.seq_len=1024 "$whole" --planned-memory --steps 1 || continue
    row "profile_$recipe" "$(grep -c 'Section: GPU Speed Of Light' "$out/profile_$recipe.txt") kernels in profile_$recipe.txt"
  done
}
