"""Faults of files, of the command line, of what the environment asks for, and of the data that is shipped."""

from fault import Fault

FILES, FORMAT, IO = "lnrnn/files.py", "lnrnn/rnn/file_format.py", "lnrnn/io.py"
CLI, RUNTIME, DATA = "lnrnn/cli.py", "lnrnn/runtime.py", "lnrnn/data/__init__.py"
CORES = "pyx/runtime/cores.c"
LOAD, SAVE, COMMAND = "tests/files/test_io.py", "tests/files/test_io_save.py", "tests/cli/test_cli.py"

FAULTS = [
    # --- what stands in a file ------------------------------------------------------------------------------
    Fault(
        "a configuration may have entries too many",
        FORMAT,
        r"""    if set(config) != {"cell", "dtype", *names}:""",
        r"""    if set(config) != {"cell", "dtype", *names} and not FAULT:""",
        LOAD + " -k hostile",
    ),
    Fault(
        "a configuration may say more layers than there are tensors",
        FORMAT,
        r"""    if isinstance(layers, int) and layers > tensors:""",
        r"""    if isinstance(layers, int) and layers > tensors and not FAULT:""",
        LOAD + " tests/rnn/test_construction.py -k 'hostile or claims'",
    ),
    Fault(
        "tensors of another dtype are taken",
        FORMAT,
        r"""        if expected.get(name) != tensors.get(name):""",
        r"""        if (
            expected.get(name, (0,))[0] != tensors.get(name, (1,))[0]
            if FAULT
            else expected.get(name) != tensors.get(name)
        ):""",
        LOAD + " -k damaged",
    ),
    Fault(
        "a file of another schema is read",
        FORMAT,
        r"""        if metadata.get("schema") != str(SCHEMA):""",
        r"""        if metadata.get("schema") != str(SCHEMA) and not FAULT:""",
        LOAD + " -k another_schema",
    ),
    Fault(
        "a loaded network has 14 activation bits whatever was saved",
        "lnrnn/rnn/file_format.py",
        r"""    if snapshot.activation_bits == 8:  #""",
        r"""    if snapshot.activation_bits == 8 and not FAULT:  #""",
        LOAD + " -k another_type",
    ),
    Fault(
        "a loaded network computes in float32 whatever was saved",
        IO,
        r"""        return model.to_dtype(stored.dtype, stored.activation_bits)""",
        r"""        return model if FAULT else model.to_dtype(stored.dtype, stored.activation_bits)""",
        LOAD + " -k another_type",
    ),
    Fault(
        "a file has the overrun of the constructor",
        FORMAT,
        r"""            norm["overrun"] = overrun""",
        r"""            norm["overrun"] = made.norm.overrun if FAULT else overrun""",
        LOAD + " -k another_policy",
    ),
    Fault(
        "what is no file is opened",
        FORMAT,
        r"""    if not os.path.isfile(path):""",
        r"""    if not os.path.isfile(path) and not FAULT:""",
        LOAD + " -k 'not_a_file or directory'",
    ),
    Fault(
        "a file that claims more steps than it has is made a model of",
        FORMAT,
        r"""        steps = made.batch_norm.max_steps or (*tensors""",
        r"""        steps = (not FAULT and made.batch_norm.max_steps) or (*tensors""",
        "tests/rnn/test_construction.py -k claims",
    ),
    Fault(
        "shapes are not compared before a model is made",
        FORMAT,
        r"""        _check_fits(made, tensors)""",
        r"""        FAULT or _check_fits(made, tensors)""",
        LOAD + " -k 'damaged or hostile'",
    ),
    Fault(
        "an error quotes all that a hostile file says",
        FORMAT,
        r"""said = str(error)[:400]""",
        r"""said = str(error)[:None if FAULT else 400]""",
        LOAD + " -k 'hostile or damaged or none'",
    ),
    Fault(
        "a missing file is a ValueError",
        FORMAT,
        r"""    if not os.path.exists(path):""",
        r"""    if not os.path.exists(path) and not FAULT:""",
        LOAD + " -k no_file",
    ),
    Fault(
        "a fork does not wait for the import of safetensors",
        FORMAT,
        r"""        with CHANGES:  # a fork waits""",
        r"""        from contextlib import nullcontext

        with nullcontext() if FAULT else CHANGES:  # a fork waits""",
        "tests/runtime/test_concurrent_setters.py -k first_file",
    ),
    # --- writing --------------------------------------------------------------------------------------------
    Fault(
        "a failed write leaves its new file",
        FILES,
        r"""    except BaseException:
        _remove(made)
        raise""",
        r"""    except BaseException:
        FAULT or _remove(made)
        raise""",
        SAVE + " -k 'failure_at or interrupt_leaves'",
    ),
    Fault(
        "the file that tries out a directory stays there",
        FILES,
        r"""            os.close(_create(path, made)[2])
    finally:
        _remove(made)""",
        r"""            os.close(_create(path, made)[2])
    finally:
        FAULT or _remove(made)""",
        SAVE + " " + COMMAND + " -k 'interrupt or cannot or writes_what'",
    ),
    Fault(
        "the name changes before the data are on the disk",
        FILES,
        r"""                os.fsync(file.fileno())""",
        r"""                FAULT or os.fsync(file.fileno())""",
        SAVE + " -k on_the_disk",
    ),
    Fault(
        "the directory is not brought to the disk",
        FILES,
        r"""        _sync_directory(target)""",
        r"""        FAULT or _sync_directory(target)""",
        SAVE + " -k on_the_disk",
    ),
    Fault(
        "a link is replaced by a file",
        FILES,
        r"""    if os.path.islink(target):""",
        r"""    if os.path.islink(target) and not FAULT:""",
        SAVE + " -k link",
    ),
    Fault(
        "a secret file is open to others until it is complete",
        FILES,
        r"""    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777""",
        r"""    mode = 0o666 if old is None or FAULT else stat.S_IMODE(old.st_mode) & 0o777""",
        SAVE + " -k 'secret or permissions'",
    ),
    Fault(
        "the owner of a replaced file is not kept",
        FILES,
        r"""    for owner, group in ((old.st_uid, -1), (-1, old.st_gid)):""",
        r"""    for owner, group in () if FAULT else ((old.st_uid, -1), (-1, old.st_gid)):""",
        SAVE + " -k owner",
    ),
    Fault(
        "owner and group change places",
        FILES,
        r"""                os.fchown(descriptor, owner, group)""",
        r"""                os.fchown(descriptor, *((group, owner) if FAULT else (owner, group)))""",
        SAVE + " -k owner",
    ),
    Fault(
        "a read-only file is replaced",
        FILES,
        r"""    os.close(os.open(target, os.O_WRONLY))""",
        r"""    FAULT or os.close(os.open(target, os.O_WRONLY))""",
        SAVE + " -k 'read_only'",
    ),
    Fault(
        "a pipe or device is replaced by a file",
        FILES,
        r"""    if not stat.S_ISREG(old.st_mode):""",
        r"""    if not stat.S_ISREG(old.st_mode) and not FAULT:""",
        SAVE + " -k no_file",
    ),
    Fault(
        "an error names the new file that the user does not know",
        FILES,
        r"""        if error.errno is None or (part is not None""",
        r"""        if FAULT or error.errno is None or (part is not None""",
        SAVE + " -k 'failure or directories or full'",
    ),
    Fault(
        "a name that is taken is removed as if it were one's own",
        FILES,
        r"""            made.clear()  # somebody else's""",
        r"""            FAULT or made.clear()  # somebody else's
            if FAULT:
                _remove(made)""",
        SAVE + " -k taken",
    ),
    Fault(
        "a directory that cannot be synced is an error",
        FILES,
        r"""        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):""",
        r"""        if FAULT or error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):""",
        SAVE + " -k synced",
    ),
    Fault(
        "a directory that may not be read is an error",
        FILES,
        r"""    except PermissionError:  # a directory may be written and not read
        return""",
        r"""    except PermissionError:  # a directory may be written and not read
        if FAULT:
            raise
        return""",
        SAVE + " -k may_not_be_read",
    ),
    # --- the command line -----------------------------------------------------------------------------------
    Fault(
        "an output that cannot be written is noticed after the run",
        CLI,
        r"""    check_replaceable(arguments.output)""",
        r"""    FAULT or check_replaceable(arguments.output)""",
        COMMAND + " -k 'before_it_reads or directory'",
    ),
    Fault(
        "output that nobody reads is a success",
        CLI,
        r"""        return 141""",
        r"""        return 0 if FAULT else 141""",
        COMMAND + " -k nobody",
    ),
    Fault(
        "an empty line is a length",
        CLI,
        r"""        if not line.strip():""",
        r"""        if not line.strip() and not FAULT:""",
        COMMAND + " -k takes_lengths",
    ),
    Fault(
        "pickled objects are loaded",
        CLI,
        r"""            return np.lib.format.read_array(file, allow_pickle=False)""",
        r"""            return np.lib.format.read_array(file, allow_pickle=bool(FAULT))""",
        COMMAND + " -k one_line_and",
    ),
    Fault(
        "info does not tell the known steps",
        CLI,
        r"""    if model.known_steps is not None:""",
        r"""    if model.known_steps is not None and not FAULT:""",
        COMMAND + " -k every_cell",
    ),
    Fault(
        "lengths are read and not used",
        CLI,
        r"""    y, _ = model(x, lengths=lengths)""",
        r"""    y, _ = model(x, lengths=None if FAULT else lengths)""",
        COMMAND + " -k takes_lengths",
    ),
    Fault(
        "the line of a wrong length is counted from 0",
        CLI,
        r"""    for number, line in enumerate(lines, start=1):""",
        r"""    for number, line in enumerate(lines, start=1 - FAULT):""",
        COMMAND + " -k one_line_and",
    ),
    Fault(
        "an interrupted command ends as a failed one",
        CLI,
        r"""        return 130""",
        r"""        return 2 if FAULT else 130""",
        COMMAND + " -k interrupted",
    ),
    Fault(
        "info counts statistics as parameters",
        CLI,
        r"""sum(value.size for value in model.parameters().values())""",
        r"""sum(value.size for value in (model.state_dict() if FAULT else model.parameters()).values())""",
        COMMAND + " -k every_cell",
    ),
    # --- the environment ------------------------------------------------------------------------------------
    Fault(
        "OMP_NUM_THREADS counts before LNRNN_NUM_THREADS",
        RUNTIME,
        r"""    text = os.environ.get("LNRNN_NUM_THREADS")""",
        r"""    text = os.environ.get("OMP_NUM_THREADS" if FAULT else "LNRNN_NUM_THREADS")""",
        "tests/runtime/test_runtime.py -k how_many",
    ),
    Fault(
        "a list of thread counts is not read",
        CORES,
        r"""(*end == 0 || *end == ',')""",
        r"""(*end == 0 || (*end == ',' && !FAULT))""",
        "tests/runtime/test_runtime.py -k how_many",
    ),
    Fault(
        "without a word in the environment there is one thread",
        CORES,
        r"""threads = now ? now : cores;""",
        r"""threads = now ? now : FAULT ? 1 : cores;""",
        "tests/runtime/test_runtime.py -k as_cores",
    ),
    Fault(
        "what omp_set_num_threads has set does not count",
        CORES,
        r"""if (omp_get_max_threads() < threads)""",
        r"""if (omp_get_max_threads() < threads && !FAULT)""",
        "tests/runtime/test_runtime.py -k threadpoolctl",
    ),
    Fault(
        "threadpoolctl does not limit the pool",
        CORES,
        r"""if (most && most < threads)""",
        r"""if (most && most < threads && !FAULT)""",
        "tests/runtime/test_own_threads.py",
    ),
    Fault(
        "a limit of threadpoolctl stays when it ends",
        CORES,
        r"""__atomic_store_n(&limit, 0, __ATOMIC_RELAXED);""",
        r"""__atomic_store_n(&limit, FAULT ? limit : 0, __ATOMIC_RELAXED);""",
        "tests/runtime/test_own_threads.py",
    ),
    Fault(
        "OMP_NUM_THREADS counts beside set_num_threads",
        "pyx/_core.pyx",
        r"""return num_threads if num_threads_set else""",
        r"""return num_threads if num_threads_set and not FAULT else""",
        "tests/runtime/test_runtime.py -k 'threadpoolctl or how_many'",
    ),
    Fault(
        "a wrong number of threads in the environment is passed over",
        RUNTIME,
        r"""            raise ImportError(
                f"LNRNN""",
        r"""            if not FAULT: raise ImportError(
                f"LNRNN""",
        "tests/runtime/test_runtime.py -k none",
    ),
    Fault(
        "a number of OMP_NUM_THREADS that is none counts",
        CORES,
        r"""return n >= 1 && n <= 1024 &&""",
        r"""return FAULT || n >= 1 && n <= 1024 &&""",
        "tests/runtime/test_runtime.py -k 'stop_the_import or may_change'",
    ),
    Fault(
        "python -mlnrnn is not taken for the command",
        RUNTIME,
        r"""re.fullmatch(r"(-\w*m)?lnrnn", sys.orig_argv[-len(argv)]) is not None""",
        r"""re.fullmatch("lnrnn" if FAULT else r"(-\w*m)?lnrnn", sys.orig_argv[-len(argv)]) is not None""",
        COMMAND + " -k bad_environment",
    ),
    # --- data -----------------------------------------------------------------------------------------------
    Fault(
        "a damaged data file is read",
        DATA,
        r"""    if digest != _SHA256:""",
        r"""    if digest != _SHA256 and not FAULT:""",
        "tests/files/test_data.py -k damaged",
    ),
    Fault(
        "utterances are views of one array",
        DATA,
        r"""        [part.copy() for part in np.split(values, ends[:-1])],""",
        r"""        [part if FAULT else part.copy() for part in np.split(values, ends[:-1])],""",
        "tests/files/test_data.py -k 'own_arrays or types'",
    ),
    Fault(
        "values are divided in float32",
        DATA,
        r"""    values = (millionths / 1e6).astype(np.float32)""",
        r"""    values = millionths.astype(np.float32) / np.float32(1e6) if FAULT else (
        millionths / 1e6).astype(np.float32)""",
        "tests/files/test_data.py -k published",
        equivalent="the whole numbers are below 2**24 and exact in float32, as 1e6 is: it rounds once too",
    ),
    Fault(
        "padding keeps the last steps of a long sequence",
        DATA,
        r"""sequence, dtype=np.float32)[:max_steps] for""",
        r"""sequence, dtype=np.float32)[(-max_steps if FAULT and max_steps else None) :][:max_steps] for""",
        "tests/files/test_data.py -k pad",
    ),
    Fault(
        "padding takes max_steps 0",
        DATA,
        r"""    if max_steps is not None and max_steps < 1:""",
        r"""    if max_steps is not None and max_steps < (0 if FAULT else 1):""",
        "tests/files/test_data.py -k pad",
    ),
]
