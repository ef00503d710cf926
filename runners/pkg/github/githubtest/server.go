// Package githubtest is a server that speaks the protocol of runner scale sets like GitHub, with
// its faults.
package githubtest

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/actions/scaleset"
	"github.com/google/uuid"
	utilclock "k8s.io/utils/clock"
)

// clock is the clock of the server.
var clock utilclock.PassiveClock = utilclock.RealClock{}

// Token is the token that the server accepts.
const Token = "ghp_test"

const service = "/service"

// New starts a server. An empty address selects a free port.
func New(address string) (*Server, error) {
	s := &Server{
		Poll: 2 * time.Second, SessionTTL: 5 * time.Second, runners: map[int]*Runner{}, changed: make(chan struct{}), requests: map[string]int{},
	}
	s.server = httptest.NewUnstartedServer(s.handler())
	if address != "" {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		s.server.Listener.Close()
		s.server.Listener = listener
	}
	s.server.StartTLS()
	return s, nil
}

// URL returns the URL of an organization on the server.
func (s *Server) URL() string { return s.server.URL + "/acme" }

// CA returns the certificate of the server, in PEM format.
func (s *Server) CA() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw}))
}

// Close stops the server.
func (s *Server) Close() {
	s.server.CloseClientConnections()
	s.server.Close()
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	api := func(pattern string, f func(r *http.Request) (int, any)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if status := s.fault(); status != 0 {
				w.Header().Set("Retry-After", "1")
				http.Error(w, http.StatusText(status), status)
				return
			}
			s.count(pattern)
			status, body := f(r)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			if body != nil {
				_ = json.NewEncoder(w).Encode(body)
			}
		})
	}
	api("POST /api/v3/orgs/acme/actions/runners/registration-token", s.registrationToken)
	api("POST /api/v3/app/installations/"+InstallationID+"/access_tokens", s.accessToken)
	api("POST /api/v3/actions/runner-registration", func(*http.Request) (int, any) {
		return http.StatusOK, map[string]string{"url": s.server.URL + service, "token": jwt(clock.Now().Add(time.Hour))}
	})
	api("GET "+service+"/_apis/runtime/runnergroups/", func(r *http.Request) (int, any) {
		if name := r.FormValue("groupName"); !strings.EqualFold(name, "default") {
			return http.StatusOK, scaleset.RunnerGroupList{}
		}
		return http.StatusOK, scaleset.RunnerGroupList{Count: 1, RunnerGroups: []scaleset.RunnerGroup{{ID: 1, Name: "Default", IsDefault: true}}}
	})
	const scaleSets = service + "/_apis/runtime/runnerscalesets"
	api("GET "+scaleSets, s.findScaleSet)
	api("POST "+scaleSets, s.createScaleSet)
	api("POST "+scaleSets+"/{id}/sessions", s.createSession)
	api("PATCH "+scaleSets+"/{id}/sessions/{session}", s.refreshSession)
	api("DELETE "+scaleSets+"/{id}/sessions/{session}", s.deleteSession)
	api("POST "+scaleSets+"/{id}/acquirejobs", s.acquireJobs)
	api("POST "+scaleSets+"/{id}/generatejitconfig", s.generateJIT)
	api("GET /queue", s.getMessage)
	api("DELETE /queue/{message}", s.deleteMessage)
	const agents = service + "/_apis/distributedtask/pools/0/agents"
	api("GET "+agents, s.findRunner)
	api("DELETE "+agents+"/{id}", s.removeRunner)
	return mux
}

func (s *Server) registrationToken(r *http.Request) (int, any) {
	if r.Header.Get("Authorization") != "Bearer "+Token {
		return http.StatusUnauthorized, map[string]string{"message": "Bad credentials"}
	}
	return http.StatusCreated, map[string]any{"token": "registration", "expires_at": clock.Now().Add(time.Hour)}
}

// jwt returns an unsigned token, of which clients read the expiry.
func jwt(expires time.Time) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return part(`{"alg":"none","typ":"JWT"}`) + "." + part(fmt.Sprintf(`{"exp":%d}`, expires.Unix())) + "."
}

// exception is an error of the service.
func exception(status int, kind, message string) (int, any) {
	return status, map[string]string{"typeName": "GitHub.DistributedTask.WebApi." + kind + ", GitHub", "message": message}
}

func (s *Server) findScaleSet(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := struct {
		Count int                       `json:"count"`
		Value []scaleset.RunnerScaleSet `json:"value"`
	}{}
	if s.scaleSet != nil && s.scaleSet.Name == r.FormValue("name") {
		list.Count, list.Value = 1, append(list.Value, *s.scaleSet)
	}
	return http.StatusOK, list
}

func (s *Server) createScaleSet(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	created := &scaleset.RunnerScaleSet{}
	if err := json.NewDecoder(r.Body).Decode(created); err != nil {
		return exception(http.StatusBadRequest, "InvalidException", err.Error())
	}
	created.ID = 7
	s.scaleSet = created
	return http.StatusOK, created
}

func (s *Server) createSession(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := scaleset.RunnerScaleSetSession{}
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
		return exception(http.StatusBadRequest, "InvalidException", err.Error())
	}
	if s.session != nil && clock.Since(s.polledAt) < s.SessionTTL {
		return exception(http.StatusConflict, "TaskAgentSessionConflictException", "the scale set has an active session of "+s.session.OwnerName)
	}
	s.session = &scaleset.RunnerScaleSetSession{SessionID: uuid.New(), OwnerName: wanted.OwnerName, MessageQueueURL: s.server.URL + "/queue"}
	s.polledAt = clock.Now()
	// Jobs that were offered to another session, and not acquired, are offered again.
	for _, job := range s.jobs {
		job.offered = false
	}
	return http.StatusOK, s.newToken()
}

// newToken gives the session a new token, and returns it with the statistics.
func (s *Server) newToken() scaleset.RunnerScaleSetSession {
	s.generation++
	s.session.MessageQueueAccessToken = "queue-" + strconv.Itoa(s.generation)
	session := *s.session
	session.Statistics = s.statistics()
	return session
}

func (s *Server) refreshSession(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil || s.session.SessionID.String() != r.PathValue("session") {
		return exception(http.StatusNotFound, "SessionNotFoundException", "no such session")
	}
	return http.StatusOK, s.newToken()
}

func (s *Server) deleteSession(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil && s.session.SessionID.String() == r.PathValue("session") {
		s.session = nil
	}
	return http.StatusNoContent, nil
}

// authorized reports whether a request has the token of the current session.
func (s *Server) authorized(r *http.Request) bool {
	return s.session != nil && r.Header.Get("Authorization") == "Bearer "+s.session.MessageQueueAccessToken
}

func (s *Server) getMessage(r *http.Request) (int, any) {
	last, _ := strconv.Atoi(r.FormValue("lastMessageId"))
	capacity, err := strconv.Atoi(r.Header.Get(scaleset.HeaderScaleSetMaxCapacity))
	if err != nil {
		return exception(http.StatusBadRequest, "InvalidException", "no capacity")
	}
	deadline := time.NewTimer(s.Poll)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		if !s.authorized(r) {
			s.mu.Unlock()
			return http.StatusUnauthorized, map[string]string{"message": "token expired"}
		}
		s.polledAt, s.capacity = clock.Now(), capacity
		s.offer()
		for _, m := range s.messages {
			if m.MessageID > last {
				m.Statistics = s.statistics()
				s.mu.Unlock()
				return http.StatusOK, m
			}
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-deadline.C:
			return http.StatusAccepted, nil
		case <-r.Context().Done():
			return http.StatusAccepted, nil
		}
	}
}

func (s *Server) deleteMessage(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.authorized(r) {
		return http.StatusUnauthorized, map[string]string{"message": "token expired"}
	}
	for i, m := range s.messages {
		if strconv.Itoa(m.MessageID) == r.PathValue("message") {
			s.messages = append(s.messages[:i], s.messages[i+1:]...)
			break
		}
	}
	return http.StatusNoContent, nil
}

func (s *Server) acquireJobs(r *http.Request) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.authorized(r) {
		return http.StatusUnauthorized, map[string]string{"message": "token expired"}
	}
	var wanted, acquired []int64
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
		return exception(http.StatusBadRequest, "InvalidException", err.Error())
	}
	for _, id := range wanted {
		if job := s.job(id); job != nil && job.EndedAt.IsZero() {
			job.acquired = true
			acquired = append(acquired, id)
		}
	}
	s.notify(nil)
	return http.StatusOK, map[string]any{"count": len(acquired), "value": acquired}
}
