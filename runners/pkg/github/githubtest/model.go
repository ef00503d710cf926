package githubtest

import (
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/actions/scaleset"
	"github.com/google/uuid"
)

// Server is a GitHub with one scale set. Its jobs are given to online runners in the order of the
// queue.
type Server struct {
	// Poll is the length of a long poll.
	Poll time.Duration
	// SessionTTL is the time after which a session that does not poll can be replaced.
	SessionTTL time.Duration
	// AppKey is the key of the GitHub App; nil without an App.
	AppKey *rsa.PublicKey

	server *httptest.Server

	mu         sync.Mutex
	scaleSet   *scaleset.RunnerScaleSet
	session    *scaleset.RunnerScaleSetSession
	polledAt   time.Time
	generation int
	capacity   int
	jobs       []*Job
	runners    map[int]*Runner
	secrets    []string
	messages   []*message
	lastID     int
	changed    chan struct{}
	requests   map[string]int
	failing    int
	failStatus int
}

// Job is a job of a workflow.
type Job struct {
	ID       int64
	Name     string
	Duration time.Duration
	QueuedAt time.Time
	// AssignedAt is the time at which a runner got the job, and StartedAt that at which it ran.
	AssignedAt, StartedAt, EndedAt time.Time
	Result                         string
	// Starts is the number of times that the job has run.
	Starts int
	// RunnerName is the name of the runner that runs it or ran it.
	RunnerName string

	offered, acquired bool
}

// Runner is a registered runner.
type Runner struct {
	ID     int
	Name   string
	Secret string
	Online bool
	// Job is its job, if it has one.
	Job *Job
}

// message is a message in the queue.
type message struct {
	MessageID   int                               `json:"messageId"`
	MessageType string                            `json:"messageType"`
	Body        string                            `json:"body"`
	Statistics  *scaleset.RunnerScaleSetStatistic `json:"statistics"`
}

// Queue adds a job.
func (s *Server) Queue(duration time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := int64(len(s.jobs) + 1)
	s.jobs = append(s.jobs, &Job{ID: id, Name: fmt.Sprintf("job-%d", id), Duration: duration, QueuedAt: clock.Now()})
	s.notify(nil)
}

// Cancel cancels a job that waits.
func (s *Server) Cancel(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if job := s.job(id); job != nil && job.RunnerName == "" && job.EndedAt.IsZero() {
		job.EndedAt, job.Result = clock.Now(), "canceled"
		s.notify(s.completed(job, 0))
	}
}

// Jobs returns copies of all jobs.
func (s *Server) Jobs() []Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var jobs []Job
	for _, job := range s.jobs {
		jobs = append(jobs, *job)
	}
	return jobs
}

// Runners returns the names of the registered runners.
func (s *Server) Runners() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, runner := range s.runners {
		names = append(names, runner.Name)
	}
	return names
}

// Secrets returns the configurations of all runners, encoded as the runners get them, and the
// secrets in them.
func (s *Server) Secrets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.secrets)
}

// Capacity returns the capacity that the client has announced last.
func (s *Server) Capacity() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capacity
}

// Connect makes the runner of a configuration online, and returns its name.
func (s *Server) Connect(jit string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var config jitConfig
	data, err := base64.StdEncoding.DecodeString(jit)
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		return "", fmt.Errorf("invalid configuration: %w", err)
	}
	for _, runner := range s.runners {
		if runner.Name == config.Name && runner.Secret == config.Secret {
			runner.Online = true
			return runner.Name, nil
		}
	}
	return "", errors.New("the runner is not registered")
}

// Next gives a runner that is online its job, or returns nil.
func (s *Server) Next(name string) *Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	runner := s.runner(name)
	if runner == nil || !runner.Online || runner.Job != nil {
		return nil
	}
	for _, job := range s.jobs {
		if job.acquired && job.RunnerName == "" && job.EndedAt.IsZero() {
			job.RunnerName, job.AssignedAt, runner.Job = name, clock.Now(), job
			found := *job
			return &found
		}
	}
	return nil
}

// Started notes that a runner runs its job.
func (s *Server) Started(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	runner := s.runner(name)
	if runner == nil || runner.Job == nil {
		return
	}
	job := runner.Job
	job.Starts++
	job.StartedAt = clock.Now()
	s.notify(scaleset.JobStarted{RunnerID: runner.ID, RunnerName: name, JobMessageBase: s.base(job, scaleset.MessageTypeJobStarted)})
}

// Ended notes that a runner has ended. An empty result means that it died: GitHub gives the job to
// another runner if it has not started, and fails it if it has.
func (s *Server) Ended(name, result string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	runner := s.runner(name)
	if runner == nil {
		return
	}
	job := runner.Job
	runner.Job, runner.Online = nil, false
	switch {
	case job == nil: // it stays registered
		return
	case result == "" && job.StartedAt.IsZero():
		job.RunnerName, job.AssignedAt = "", time.Time{}
		s.notify(nil)
		return
	case result == "":
		result = "failed"
	default:
		delete(s.runners, runner.ID) // a runner with a just-in-time configuration has one job
	}
	job.EndedAt, job.Result = clock.Now(), result
	s.notify(s.completed(job, runner.ID))
}

func (s *Server) completed(job *Job, runnerID int) scaleset.JobCompleted {
	return scaleset.JobCompleted{Result: job.Result, RunnerID: runnerID, RunnerName: job.RunnerName, JobMessageBase: s.base(job, scaleset.MessageTypeJobCompleted)}
}

func (s *Server) base(job *Job, kind scaleset.MessageType) scaleset.JobMessageBase {
	return scaleset.JobMessageBase{
		JobMessageType: scaleset.JobMessageType{MessageType: kind}, RunnerRequestID: job.ID, OwnerName: "acme", RepositoryName: "app",
		WorkflowRunID: 1, JobDisplayName: job.Name, QueueTime: job.QueuedAt, RunnerAssignTime: job.AssignedAt, FinishTime: job.EndedAt,
	}
}

// offer announces jobs up to the capacity of the client.
func (s *Server) offer() {
	taken := 0
	for _, job := range s.jobs {
		if job.EndedAt.IsZero() && (job.offered || job.acquired) {
			taken++
		}
	}
	var batch []any
	for _, job := range s.jobs {
		if job.EndedAt.IsZero() && !job.offered && !job.acquired && taken < s.capacity {
			job.offered = true
			taken++
			batch = append(batch, scaleset.JobAvailable{JobMessageBase: s.base(job, scaleset.MessageTypeJobAvailable)})
		}
	}
	if len(batch) > 0 {
		s.send(batch)
	}
}

// notify sends a message about a job, or none, and ends long polls.
func (s *Server) notify(body any) {
	if body != nil {
		s.send([]any{body})
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) send(batch []any) {
	data, err := json.Marshal(batch)
	if err != nil {
		panic(err)
	}
	s.lastID++
	s.messages = append(s.messages, &message{MessageID: s.lastID, MessageType: "RunnerScaleSetJobMessages", Body: string(data)})
}

func (s *Server) statistics() *scaleset.RunnerScaleSetStatistic {
	statistics := &scaleset.RunnerScaleSetStatistic{TotalRegisteredRunners: len(s.runners)}
	for _, job := range s.jobs {
		switch {
		case !job.EndedAt.IsZero():
		case job.acquired:
			statistics.TotalAssignedJobs++
			if job.RunnerName != "" {
				statistics.TotalRunningJobs++
			}
		default:
			statistics.TotalAvailableJobs++
		}
	}
	return statistics
}

func (s *Server) job(id int64) *Job {
	if id < 1 || id > int64(len(s.jobs)) {
		return nil
	}
	return s.jobs[id-1]
}

func (s *Server) runner(name string) *Runner {
	for _, runner := range s.runners {
		if runner.Name == name {
			return runner
		}
	}
	return nil
}

// jitConfig is a just-in-time configuration.
type jitConfig struct{ Name, Secret string }

func (s *Server) generateJIT(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var setting scaleset.RunnerScaleSetJitRunnerSetting
	if err := json.NewDecoder(r.Body).Decode(&setting); err != nil {
		return exception(http.StatusBadRequest, "InvalidException", err.Error())
	}
	if s.runner(setting.Name) != nil {
		return exception(http.StatusConflict, "AgentExistsException", "a runner has this name")
	}
	s.lastID++
	runner := &Runner{ID: s.lastID, Name: setting.Name, Secret: "jit-" + uuid.NewString()}
	s.runners[runner.ID] = runner
	data, err := json.Marshal(jitConfig{runner.Name, runner.Secret})
	if err != nil {
		panic(err)
	}
	encoded := base64.StdEncoding.EncodeToString(data)
	s.secrets = append(s.secrets, encoded, runner.Secret)
	return http.StatusOK, scaleset.RunnerScaleSetJitRunnerConfig{
		Runner: &scaleset.RunnerReference{ID: runner.ID, Name: runner.Name}, EncodedJITConfig: encoded,
	}
}

func (s *Server) findRunner(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := scaleset.RunnerReferenceList{}
	if runner := s.runner(r.FormValue("agentName")); runner != nil {
		list.Count, list.RunnerReferences = 1, []scaleset.RunnerReference{{ID: runner.ID, Name: runner.Name}}
	}
	return http.StatusOK, list
}

func (s *Server) removeRunner(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _ := strconv.Atoi(r.PathValue("id"))
	runner := s.runners[id]
	switch {
	case runner == nil:
		return exception(http.StatusNotFound, "AgentNotFoundException", "no such runner")
	case runner.Job != nil:
		return exception(http.StatusBadRequest, "JobStillRunningException", "the runner has a job")
	}
	delete(s.runners, id)
	return http.StatusNoContent, nil
}
