package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The exit codes that gitlab-runner asks for.
const (
	buildFailure  = 81
	systemFailure = 82
)

// gitlabJob is a job of GitLab, whose stages this program starts as gitlab-runner does.
type gitlabJob struct {
	*world
	kubeconfig, id string
	log            bytes.Buffer
}

// gitlabOutcome is the number of jobs of GitLab, and the defects.
type gitlabOutcome struct {
	jobs    int
	defects []error
}

// gitlab runs jobs one after another: a build that succeeds, one that fails, and one that is
// canceled.
func (w *world) gitlab(ctx context.Context, jobs int) gitlabOutcome {
	var outcome gitlabOutcome
	runs := []func(*gitlabJob, context.Context) error{(*gitlabJob).succeed, (*gitlabJob).fail, (*gitlabJob).cancel}
	for n := range jobs {
		job := &gitlabJob{world: w, kubeconfig: w.kubeconfig, id: fmt.Sprint(n + 1)}
		err := job.prepare(ctx)
		if err == nil {
			err = runs[n%len(runs)](job, ctx)
		}
		err = errors.Join(err, job.stage(ctx, "cleanup").run(0))
		if err != nil {
			outcome.defects = append(outcome.defects, fmt.Errorf("GitLab job %s: %w; its log: %s", job.id, err, &job.log))
		}
		outcome.jobs++
	}
	return outcome
}

func (j *gitlabJob) prepare(ctx context.Context) error {
	config := j.stage(ctx, "config")
	if err := config.run(0); err != nil {
		return err
	}
	if !strings.Contains(config.out.String(), `"builds_dir"`) {
		return fmt.Errorf("config printed %s", &config.out)
	}
	if err := j.stage(ctx, "prepare").run(0); err != nil {
		return err
	}
	// A machine that has run something before fails here.
	return j.script(ctx, `mkdir "$HOME/used"`, "prepare_script").run(0)
}

func (j *gitlabJob) succeed(ctx context.Context) error {
	build := j.script(ctx, "for n in 1 2 3 4 5 6; do echo line $n; sleep 1; done", "build_script")
	if err := build.run(0); err != nil {
		return err
	}
	if want := "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\n"; build.out.String() != want {
		return fmt.Errorf("the build printed %q, wanted %q", &build.out, want)
	}
	return nil
}

func (j *gitlabJob) fail(ctx context.Context) error {
	build := j.script(ctx, "exit 3", "build_script")
	if err := build.run(buildFailure); err != nil {
		return err
	}
	code, err := os.ReadFile(build.codeFile)
	if err != nil {
		return err
	}
	if string(code) != "3" {
		return fmt.Errorf("the file of the exit code has %q, wanted 3", code)
	}
	return j.script(ctx, "true", "after_script").run(0)
}

func (j *gitlabJob) cancel(ctx context.Context) error {
	build := j.script(ctx, "sleep 600", "build_script")
	time.AfterFunc(4*time.Second, func() { _ = build.cmd.Process.Signal(syscall.SIGTERM) })
	return build.run(systemFailure)
}

// stage is a command of a job.
type stage struct {
	cmd      *exec.Cmd
	codeFile string
	out      bytes.Buffer
}

func (j *gitlabJob) stage(ctx context.Context, args ...string) *stage {
	s := &stage{codeFile: filepath.Join(j.cluster.Dir(), "gitlab-exit-code")}
	args = append([]string{"gitlab", args[0], "--set=gitlab", "--namespace=" + tenant, "--kubeconfig=" + j.kubeconfig}, args[1:]...)
	s.cmd = exec.CommandContext(ctx, j.program("macrack-runners"), args...)
	s.cmd.Env = append(os.Environ(), "CUSTOM_ENV_CI_JOB_ID="+j.id, "CUSTOM_ENV_CI_PROJECT_ID=5", "CUSTOM_ENV_CI_SERVER_URL=https://gitlab.example.com",
		"BUILD_EXIT_CODE_FILE="+s.codeFile, fmt.Sprintf("BUILD_FAILURE_EXIT_CODE=%d", buildFailure), fmt.Sprintf("SYSTEM_FAILURE_EXIT_CODE=%d", systemFailure))
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &j.log
	return s
}

func (j *gitlabJob) script(ctx context.Context, script, name string) *stage {
	file := filepath.Join(j.cluster.Dir(), "gitlab-script")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		fmt.Fprintln(&j.log, err) // the stage fails
	}
	return j.stage(ctx, "run", file, name)
}

// run runs the command, and checks its exit code.
func (s *stage) run(want int) error {
	err := s.cmd.Run()
	var exit *exec.ExitError
	got := 0
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		return err
	}
	if got != want {
		return fmt.Errorf("%s: exit code %d, wanted %d", strings.Join(s.cmd.Args[1:3], " "), got, want)
	}
	return nil
}
